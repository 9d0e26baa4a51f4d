"""Intervals that are narrowed by counts, in rounds that they share."""

import numpy as np
import pytest
import torch

from fadeout.selection.bracket import Sorted, narrow
from fadeout.selection.floats import ordinal_of
from fadeout.selection.search import Finder, find_lowest
from fadeout.torch_bridge.sharding import Region, Shards

ENDS = ordinal_of(-torch.inf, torch.float32), ordinal_of(torch.inf, torch.float32) + 1


class Sums:
    """Sums over one process, counted."""

    def __init__(self):
        self.rounds = 0

    def __call__(self, counts):
        self.rounds += 1
        return list(counts)


@pytest.mark.parametrize("sharded", [False, True])
def test_the_kth_of_sorted_keys(sharded):
    keys = np.array([-1.0, 0.5, 0.5, 0.5, 3.0], np.float32)
    for k, (value, rank, equal) in enumerate(
        [(-1.0, 1, 1), (0.5, 1, 3), (0.5, 2, 3), (0.5, 3, 3), (3.0, 1, 1)], start=1
    ):
        found = Sorted(keys, torch.float32, sharded, k, *ENDS, 5)
        narrow([found], list)
        assert (found.low, found.rank, found.inside) == (ordinal_of(value, torch.float32), rank, equal)


@pytest.mark.parametrize("sharded", [False, True])
def test_beyond_the_keys_are_the_ends(sharded):
    keys = np.array([1.0, 2.0], np.float32)
    for k, end in ((0, ENDS[0]), (-3, ENDS[0]), (3, ENDS[1] - 1)):
        found = Sorted(keys, torch.float32, sharded, k, *ENDS, 2)
        narrow([found], _never)
        assert (found.low, found.high) == (end, end + 1)


def _never(counts):
    raise AssertionError("nothing has to be counted")


class Sharded(Shards):
    """All of a tensor, searched as if other processes had more."""

    sharded = True

    def __init__(self, tensor):
        shape = tuple(tensor.shape)
        super().__init__([Region(shape, shape, (0,) * len(shape))])


def test_several_searches_share_their_rounds():
    torch.manual_seed(0)
    groups = [[(torch.randn(300, 40) * scale * 8).round() / 8] for scale in (1.0, 30.0, 0.1)]
    ks = [5000, 11_999, 700]
    apart = []
    for group, k in zip(groups, ks, strict=True):
        sums = Sums()
        find_lowest([Finder(shards=Sharded(group[0]))], [group], [k], sums)
        apart.append(sums.rounds)
    sums = Sums()
    finders = [Finder(shards=Sharded(group[0])) for group in groups]
    for found, group, k in zip(find_lowest(finders, groups, ks, sums), groups, ks, strict=True):
        wanted = torch.zeros(12_000, dtype=torch.bool)
        wanted[group[0].view(-1).sort(stable=True).indices[:k]] = True
        assert torch.equal(found.mask(0, group[0]).view(-1), wanted)
    assert sums.rounds <= max(apart) + 3 < sum(apart)  # they wait for one another after each phase


def test_a_warm_search_without_shards_sums_once(monkeypatch):
    monkeypatch.setattr("fadeout.selection.search._AT_ONCE", 0)
    torch.manual_seed(0)
    finder, part = Finder(magnitude=True), torch.randn(100_000)
    for _ in range(4):
        sums = Sums()
        find_lowest([finder], [[part]], [90_000], sums)
    assert sums.rounds == 1
