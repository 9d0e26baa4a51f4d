"""Compiled selections against a stable sort, with ties where blocks and rows begin and end."""

import random
import warnings

import pytest
import torch

from fadeout.selection import search
from fadeout.selection.compiled import CompiledPasses
from fadeout.selection.search import Finder

WORTH = 65_536  # elements from which on a row is compiled
BLOCK = 32  # that a compiled pass counts together

SIZES = [WORTH - 1, WORTH, WORTH + 1, WORTH + 17, WORTH + 31, WORTH + 32, WORTH + 33, 3 * WORTH + 95]
TIES = {
    "last block": lambda size: range(size // BLOCK * BLOCK, size),
    "last element": lambda size: range(size - 1, size),
    "both ends": lambda size: [*range(40), *range(size - 40, size)],
    "every block": lambda size: range(5, size, BLOCK),
    "everywhere": lambda size: range(0, size, 7),
    "nearly all": lambda size: range(3, size),
}


def tied_row(size: int, ties: str, dtype: torch.dtype, level: float, seed: int) -> torch.Tensor:
    """Random weights, of which some have the same magnitude, at known positions and with random signs."""
    generator = torch.Generator().manual_seed(seed)
    row = torch.randn(size, generator=generator, dtype=dtype)
    signs = torch.randint(2, (size,), generator=generator, dtype=dtype) * 2 - 1
    positions = torch.tensor(list(TIES[ties](size)), dtype=torch.int64)
    row[positions] = level * signs[positions]
    return row


def by_sort(keys: torch.Tensor, k: int) -> torch.Tensor:
    taken = torch.zeros(len(keys), dtype=torch.bool)
    taken[keys.sort(stable=True).indices[:k]] = True
    return taken


def check_trial(seed: int) -> None:
    """Two or three searches of one finder, the later ones around a threshold that it knows."""
    chance = random.Random(seed)
    dtype = chance.choice([torch.float32, torch.float64])
    finder = Finder(magnitude=True, compile=True)
    sizes = [chance.choice(SIZES) + chance.choice([0, 0, chance.randrange(1, 64)])]
    sizes += [chance.choice([5, 1000, WORTH + chance.randrange(1, 32)]) for _ in range(chance.randrange(3))]
    level = chance.choice([0.01, 0.3, 1.0, 2.5])
    kinds = [chance.choice(list(TIES)) for _ in sizes]
    for step in range(chance.choice([2, 3])):
        rows = [
            tied_row(size, ties if size > 80 else "last element", dtype, level, 10 * seed + step)
            for size, ties in zip(sizes, kinds, strict=True)
        ]
        keys = torch.cat(rows).abs()
        equal = int((keys == torch.tensor(level, dtype=dtype)).sum())
        k = int((keys < level).sum()) + chance.randrange(equal + 1)  # among the ties
        with warnings.catch_warnings(record=True) as notices:
            warnings.simplefilter("always")
            found = finder(rows, k)
        if not isinstance(finder.passes(dtype), CompiledPasses):
            pytest.skip(f"no compiler here: {notices[-1].message}")
        got = torch.cat([found.mask(number, row) for number, row in enumerate(rows)])
        assert torch.equal(got, by_sort(keys, k)), (seed, step, sizes, kinds, dtype, level, k)


@pytest.fixture(autouse=True)
def _no_short_cut(monkeypatch):
    """Few numbers would be sorted in one go, without a pass."""
    monkeypatch.setattr(search, "_AT_ONCE", 0)


@pytest.mark.parametrize("ties", list(TIES))
def test_ties_in_a_row_with_an_incomplete_block(ties):
    row = tied_row(WORTH + 17, ties, torch.float32, 1.0, seed=0)
    for k in (int((row.abs() < 1).sum()) + 1, int((row.abs() <= 1).sum()) - 1, WORTH // 2):
        found = Finder(magnitude=True, compile=True)([row], k)
        assert torch.equal(found.mask(0, row), by_sort(row.abs(), k))


def test_equals_a_stable_sort():
    for seed in range(36):
        check_trial(seed)


@pytest.mark.slow
def test_equals_a_stable_sort_in_many_trials():
    for seed in range(1000, 1300):
        check_trial(seed)
