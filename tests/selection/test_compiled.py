"""Compiled passes do what the plain ones do."""

import warnings

import pytest
import torch

from fadeout.fades import Latent
from fadeout.methods.variants import LatentVariant
from fadeout.selection import compiled as compiling
from fadeout.selection.compiled import CompiledPasses, choose_passes, shrink_lowest
from fadeout.selection.passes import Passes


@pytest.fixture(scope="module")
def compiled() -> Passes:
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        found = choose_passes(True, torch.float32, 0, compile=True)
    if not isinstance(found, CompiledPasses):
        pytest.skip(f"no compiler here: {notices[-1].message}")
    return found


ROWS = [300_025, 5, 65_536, 70_000, 0]


def rows() -> list[torch.Tensor]:
    torch.manual_seed(1)
    found = [torch.randn(length) for length in ROWS]
    found[0][-3:] = found[3][-2:].fill_(0.5005)[0]  # in the last, incomplete blocks
    return found


@pytest.mark.parametrize("bracket", [(0.5, 0.501), (0.0, 1e-3), (2.0, 2.0001), (9.0, 10.0)])
def test_compiled_probes_find_the_same(compiled, bracket):
    plain = Passes(True)
    one, other = plain.probe(rows(), *bracket, most=5000), compiled.probe(rows(), *bracket, most=5000)
    assert [probe[:3] for probe in one] == [probe[:3] for probe in other]
    found = zip(plain.collect(rows(), *bracket, one), compiled.collect(rows(), *bracket, other), strict=True)
    for (values, positions), (same, there) in found:
        assert torch.equal(values, same)
        assert torch.equal(positions, there)


def test_more_than_asked_for_are_counted_and_not_collected(compiled):
    for one in (Passes(True), compiled):
        probes = one.probe(rows(), 0.1, 2.0, most=1000)
        assert sum(probe.inside for probe in probes) > 1000
        assert None in [probe.keys for probe in probes]


def test_a_row_without_a_rest_is_not_collected_in_part(compiled):
    row = rows()[0][: 1 << 17]
    for one in (Passes(True), compiled):
        (probe,) = one.probe([row], 0.1, 2.0, most=1000)
        assert probe.keys is None


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


def odd_row() -> torch.Tensor:
    """Numbers of all sizes, both zeros among them."""
    row = torch.cat([rows()[0], torch.tensor([1e-38, -1e-38, 1e-44, 0.0, -0.0, 3e38, -3e38, 0.7, -0.7])])
    row[::7] *= 1e-37
    row[::11] *= 1e20
    return row


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int32)


@pytest.mark.parametrize("back", [0.5, 0.75, 0.3, 1.0])
@pytest.mark.parametrize("limit", [0.7, 0.0, torch.inf])
def test_pull_is_the_same_to_the_last_bit_however_it_is_done(compiled, limit, back):
    before = odd_row()
    row = before + 1e-3 * before.roll(1).clamp(-1, 1)
    wanted = torch.where(before.abs() < limit, before + (row - before) * (1 - back), row)
    for one in (Passes(True), compiled):
        for parts in (1, 3, 59):
            got = row.clone()
            for now, was in zip(got.chunk(parts), before.chunk(parts), strict=True):
                one.pull(was, now, was, limit, back)
            assert torch.equal(bits(got), bits(wanted))


@pytest.mark.parametrize("threshold", [0.7, 0.0, 1e-37, 1e20])
@pytest.mark.parametrize("fade", [Latent(), LatentVariant(power=2)])
def test_a_sparse_form_is_the_same_to_the_last_bit_however_it_is_written(compiled, fade, threshold):
    row = odd_row()
    wanted = fade.sparse(row, threshold)
    for one in (Passes(True), compiled):
        for parts in (1, 3, 59):
            got = torch.full_like(row, 7.0)
            for own, there in zip(row.chunk(parts), got.chunk(parts), strict=True):
                one.write(fade.sparse, own, there, threshold)
            assert torch.equal(bits(got), bits(wanted))


def test_the_lowest_of_groups_by_hand(compiled):
    row = torch.tensor([4.0, 1.0, -1.0, 2.0, 9.0, -2.0, 0.0, 2.0, 2.0, -1e-39])
    later = torch.tensor([3, 2, 1, 0, 4] * 2, dtype=torch.int8)  # the fifth of each row is in no group
    one, other = row.clone(), row.clone()
    shrink_lowest(one, later, n=3, m=4, width=1, factor=0.5)
    assert one.tolist() == [4.0, 0.5, -1.0, 2.0, 9.0, -2.0, 0.0, 2.0, 2.0, row[-1]]
    shrink_lowest(other, later, n=1, m=4, width=1, factor=0.0)
    assert other.tolist() == [4.0, 0.0, 0.0, 0.0, 9.0, 0.0, 0.0, 0.0, 2.0, row[-1]]


def test_only_exact_functions_are_compiled(monkeypatch):
    seen = []
    monkeypatch.setattr(compiling, "_compiled", lambda function: lambda *_: seen.append(function.__name__))
    row, passes = rows()[0], CompiledPasses(True, torch.float32)
    passes.write(Latent().sparse, row, row.clone(), 0.7)
    assert seen == ["_write"]
    passes.write(Latent().sparse, row, row.clone(), 0.0)
    passes.write(LatentVariant(power=2).sparse, row, row.clone(), 0.7)
    passes.write(Latent().sparse, row.bfloat16(), row.bfloat16(), 0.7)
    assert seen == ["_write"]
    passes.pull(row, row.clone(), row, 0.7, 0.75)
    assert seen == ["_write", "_pull"]
    monkeypatch.setattr(compiling, "reads_are_free", lambda row: False)  # as on a GPU
    passes.pull(row, row.clone(), row, 0.7, 0.75)
    assert seen == ["_write", "_pull"]
    passes.pull(row, row.clone(), row, 0.7, 0.5)
    assert seen == ["_write", "_pull", "_pull"]


def test_without_a_compiler_there_is_one_notice(monkeypatch):
    def fails(function):
        raise RuntimeError("no g++ found\nand much more")

    monkeypatch.setattr(compiling, "_compiled", fails)
    with pytest.warns(UserWarning, match=r"does not work here \(no g\+\+ found\)") as notices:
        found = choose_passes(True, torch.float32, 0, compile=True)
    assert len(notices) == 1
    assert type(found) is Passes


def test_large_work_is_compiled(monkeypatch):
    monkeypatch.setattr(compiling, "_compiled", lambda function: function)
    assert type(choose_passes(True, torch.float32, 1e12)) is CompiledPasses
    assert type(choose_passes(True, torch.float32, 1e6)) is Passes
    assert type(choose_passes(True, torch.float32, 1e12, compile=False)) is Passes
    assert type(choose_passes(False, torch.float32, 1e12)) is Passes
