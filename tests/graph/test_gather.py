"""Gathering channels, by hand."""

import torch

from fadeout.graph.gather import Gather


def test_channels_are_picked_and_constants_stand_in():
    gather = Gather(torch.tensor([2, -1, 0]), torch.tensor([9.0, 5.0, 9.0]), width=3, axis=1)
    found = gather(torch.tensor([[[1.0, 1.5], [2.0, 2.5], [3.0, 3.5]]]))
    assert found.tolist() == [[[3.0, 3.5], [5.0, 5.0], [1.0, 1.5]]]
    assert gather.state_dict().keys() == {"index", "constant"}  # as in every file that was saved


def test_without_missing_channels_nothing_is_added():
    gather = Gather(torch.tensor([1, 0]), torch.tensor([9.0, 9.0]), width=2, axis=0)
    assert not gather.pads
    assert not gather.shifts
    assert gather(torch.tensor([1.0, 2.0])).tolist() == [2.0, 1.0]
