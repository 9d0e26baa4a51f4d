"""Targets: by a threshold and by a mask, the same is done to the same weights."""

import pytest
import torch

from fadeout.selection.passes import Passes
from fadeout.selection.search import Finder
from fadeout.structures.base import Marked
from fadeout.structures.elements import Below


def weights(ties: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    found = [torch.randn(40, 30), torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)]
    found.append(torch.randn(30, 20).t())
    return [(w * 4).round() / 4 if ties else w for w in found]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_threshold_does_what_a_mask_does(ties, share):
    parts = weights(ties)
    k = round(share * sum(part.numel() for part in parts))
    found = Finder(magnitude=True)(parts, k)
    for number, part in enumerate(parts):
        below = Below(found, number, Passes(True))
        mask = below.mask(part)
        same = part.clone()
        wanted = torch.where(mask, same * 0.5, same)
        below.scale_(part, 0.5)
        assert torch.equal(part, wanted)
    if found.threshold != 0:
        total = sum(int(found.mask(n, part).sum()) for n, part in enumerate(weights(ties)))
        assert total == k


@pytest.mark.parametrize("ties", [False, True])
def test_parts_cover_the_parameter_once(ties):
    parts = weights(ties)
    found = Finder(magnitude=True)(parts, 700)
    for number, part in enumerate(parts):
        other, seen = torch.zeros_like(part), 0
        below = Below(found, number, Passes(True))
        wanted = below.mask(part)
        for mask, piece, there in below.parts(part, other):
            assert mask.shape == piece.shape == there.shape
            there.masked_fill_(mask, 1.0)
            seen += piece.numel()
        assert seen == part.numel()
        assert torch.equal(other == 1, wanted)


def test_neighbours_in_float64_are_told_apart():
    """They are nearer to each other than float32 could say."""
    part = torch.tensor([1.0, 1.0 + 1e-12, 2.0], dtype=torch.float64)
    found = Finder(magnitude=True)([part], 1)
    Below(found, 0, Passes(True, torch.float64)).scale_(part, 0.5)
    assert part.tolist() == [0.5, 1.0 + 1e-12, 2.0]


def test_other_dtypes_are_scaled_in_float32():
    part = torch.randn(10, dtype=torch.bfloat16)
    found = Finder(magnitude=True)([part], 5)
    wanted = torch.where(found.mask(0, part), part.float() * 0.3, part.float()).bfloat16()
    Below(found, 0, Passes(True)).scale_(part, 0.3)
    assert torch.equal(part, wanted)


def test_marked():
    mask, weight = torch.tensor([True, False]), torch.ones(2)
    target = Marked(mask)
    assert target.mask(weight) is mask
    assert [len(piece) for piece in target.parts(weight, weight)] == [3]
    target.scale_(weight, 0.25)
    assert weight.tolist() == [0.25, 1.0]
