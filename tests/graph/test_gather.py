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


def test_channels_that_lie_where_they_should_are_not_moved():
    index, constant = torch.tensor([0, -1, 2]), torch.tensor([9.0, 5.0, 9.0])
    gather, moves = Gather(index, constant, width=3, axis=1), Gather(index, constant, width=4, axis=1)
    assert gather.stays
    assert not moves.stays
    x = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    found = gather(x)
    assert torch.equal(found, torch.stack([x[:, 0], torch.full((2, 4, 4), 5.0), x[:, 2]], 1))
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(torch.fx.symbolic_trace(gather)(x), found)
    assert gather.state_dict().keys() == moves.state_dict().keys()  # as in every file that was saved
