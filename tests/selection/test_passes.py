"""Passes over weights: plain and compiled ones do the same."""

import warnings

import pytest
import torch

from fadeout.selection import passes as kernels
from fadeout.selection.floats import after, before
from fadeout.selection.passes import CompiledPasses, Passes, by_rows, flat, passes


@pytest.fixture(scope="module")
def compiled() -> Passes:
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        found = passes(True, torch.float32, 0, compile=True)
    if not isinstance(found, CompiledPasses):
        pytest.skip(f"no compiler here: {notices[-1].message}")
    return found


ROWS = [300_025, 5, 65_536, 70_000, 0]


def rows() -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(length) for length in ROWS]


@pytest.mark.parametrize("bracket", [(0.5, 0.501), (0.0, 1e-3), (2.0, 2.0001), (9.0, 10.0)])
def test_compiled_probes_find_the_same(compiled, bracket):
    plain = Passes(True)
    one, other = plain.probe(rows(), *bracket, most=5000), compiled.probe(rows(), *bracket, most=5000)
    assert one.facts == other.facts
    found = zip(plain.collect(rows(), *bracket, one), compiled.collect(rows(), *bracket, other), strict=True)
    for (values, places), (same, there) in found:
        assert torch.equal(values, same)
        assert torch.equal(places, there)


def test_more_than_asked_for_are_counted_and_not_collected(compiled):
    for one in (Passes(True), compiled):
        probe = one.probe(rows(), 0.1, 2.0, most=1000)
        assert sum(fact.inside for fact in probe.facts) > 1000
        assert None in probe.keys


def test_a_row_without_a_rest_is_not_collected_in_part(compiled):
    row = rows()[0][: 1 << 17]
    for one in (Passes(True), compiled):
        probe = one.probe([row], 0.1, 2.0, most=1000)
        assert probe.keys == [None]


def test_collected_without_reads(monkeypatch):
    monkeypatch.setattr(kernels, "reads_are_free", lambda row: False)  # as on a GPU
    wanted = [keys.abs() for keys in rows()]
    for missing in (False, True):
        if missing:  # as in an older torch on a GPU
            monkeypatch.setattr(torch, "nonzero_static", _not_there)
        one = Passes(True)
        found = one.collect(rows(), 0.5, 0.6, one.probe(rows(), 0.5, 0.6, most=0))
        for (values, places), key in zip(found, wanted, strict=True):
            assert torch.equal(places, ((key >= 0.5) & (key < 0.6)).nonzero().squeeze(1))
            assert torch.equal(values, key[places])


def _not_there(*args, **kwargs):
    raise NotImplementedError


@pytest.mark.parametrize("factor", [0.999, 0.7, 0.5, 0.3, 1e-37, 0.0])
@pytest.mark.parametrize("threshold", [0.7, 1e-38, 1e-44])
def test_shrink_is_one_multiplication_to_the_last_bit_however_it_is_done(compiled, factor, threshold):
    row = torch.cat([rows()[0], torch.tensor([1e-38, -1e-38, 1e-44, 0.0, -0.0])])
    row[::7] *= 1e-37
    wanted = torch.where(row.abs() < threshold, row * factor, row)
    wanted[wanted.abs() < min(torch.finfo(torch.float32).tiny, threshold)] = 0
    for one in (Passes(True), compiled):
        for parts in (1, 3, 59):  # as in so many shards
            got = row.clone()
            for part in got.chunk(parts):
                one.shrink(part, threshold, factor)
            assert torch.equal(got, wanted)


def test_without_a_compiler_there_is_one_notice(monkeypatch):
    def fails(function):
        raise RuntimeError("no g++ found\nand much more")

    monkeypatch.setattr(kernels, "_compiled", fails)
    with pytest.warns(UserWarning, match=r"does not work here \(no g\+\+ found\)") as notices:
        found = passes(True, torch.float32, 0, compile=True)
    assert len(notices) == 1
    assert type(found) is Passes


def test_large_work_is_compiled(monkeypatch):
    monkeypatch.setattr(kernels, "_compiled", lambda function: function)
    assert type(passes(True, torch.float32, 1e12)) is CompiledPasses
    assert type(passes(True, torch.float32, 1e6)) is Passes
    assert type(passes(True, torch.float32, 1e12, compile=False)) is Passes
    assert type(passes(False, torch.float32, 1e12)) is Passes


def test_rows_follow_the_memory():
    tensor = torch.arange(24.0).view(2, 3, 2, 2).to(memory_format=torch.channels_last)
    row = flat(tensor)
    assert row.data_ptr() == tensor.data_ptr()
    positions = torch.arange(24)
    assert torch.equal(tensor.reshape(-1)[by_rows(tensor, positions)], row)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_neighbours(dtype):
    one = torch.tensor(0.3, dtype=dtype)
    assert before(after(one.item(), dtype), dtype) == one.item()
    assert after(one.item(), dtype) > one.item()
    assert before(0.0, dtype) == 0
    assert before(torch.inf, dtype) == torch.inf
