"""Passes over weights, in plain PyTorch."""

import torch

from fadeout.selection import passes as passing
from fadeout.selection.passes import Passes, by_rows, flat


def rows() -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(length) for length in (300_025, 5, 65_536, 70_000, 0)]


def test_collected_without_reads(monkeypatch):
    monkeypatch.setattr(passing, "reads_are_free", lambda row: False)  # as on a GPU
    wanted = [keys.abs() for keys in rows()]
    for missing in (False, True):
        if missing:  # as in an older torch on a GPU
            monkeypatch.setattr(torch, "nonzero_static", _not_there)
        one = Passes(True)
        found = one.collect(rows(), 0.5, 0.6, one.probe(rows(), 0.5, 0.6, most=0))
        for (values, positions), key in zip(found, wanted, strict=True):
            assert torch.equal(positions, ((key >= 0.5) & (key < 0.6)).nonzero().squeeze(1))
            assert torch.equal(values, key[positions])


def test_numbers_below_zero_are_collected_without_reads(monkeypatch):
    monkeypatch.setattr(passing, "reads_are_free", lambda row: False)
    one, row = Passes(magnitude=False), torch.tensor([-2.0, -1.0, -1.5, -3.0, 0.0, torch.inf])
    for low, high, wanted in ((-2.0, -1.0, [0, 2]), (-1.0, torch.inf, [1, 4, 5])):
        ((values, positions),) = one.collect([row], low, high, one.probe([row], low, high, most=0))
        assert positions.tolist() == wanted
        assert torch.equal(values, row[positions])


def _not_there(*args, **kwargs):
    raise NotImplementedError


def test_rows_follow_the_memory():
    tensor = torch.arange(24.0).view(2, 3, 2, 2).to(memory_format=torch.channels_last)
    row = flat(tensor)
    assert row.data_ptr() == tensor.data_ptr()
    positions = torch.arange(24)
    assert torch.equal(tensor.reshape(-1)[by_rows(tensor, positions)], row)
