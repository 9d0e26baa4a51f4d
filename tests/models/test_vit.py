"""The small vision transformer: its size by hand, its trace, heads that are cut out."""

from typing import Any

import pytest
import torch
from support.models import check_training_and_trace, norm, on_meta, size
from torch import nn

from fadeout import models


def test_vit_by_hand():
    dim, tokens = 192, 64
    attention = 4 * (dim * dim + dim)
    perceptron = dim * 4 * dim + 4 * dim + 4 * dim * dim + dim
    stem = 3 * dim * 4 * 4 + dim + tokens * dim
    total = stem + 6 * (attention + perceptron + 2 * norm(dim)) + norm(dim) + dim * 10 + 10
    assert size(on_meta("vit")) == total == 2_693_194


def test_forward_backward_and_trace():
    model, x = models.vit(num_classes=7, image_size=16, dim=12, depth=2), torch.randn(2, 3, 16, 16)
    assert model(x).shape == (2, 7)
    check_training_and_trace(model, [x], [x[:1]])


def test_whole_heads_can_be_cut_out():
    model = models.vit(image_size=8, dim=12, depth=1, heads=3).eval()
    x = torch.randn(2, 3, 8, 8)
    attention: Any = model.blocks[0].attention
    assert attention.heads == 3
    kept = torch.cat([torch.arange(4), torch.arange(8, 12)])
    with torch.no_grad():
        attention.proj.weight[:, 4:8] = 0
        whole = model(x)
        for name in "qkv":
            old = getattr(attention, name)
            new = nn.Linear(12, 8)
            new.weight.copy_(old.weight[kept])
            new.bias.copy_(old.bias[kept])
            setattr(attention, name, new)
        attention.proj.weight = nn.Parameter(attention.proj.weight[:, kept])
        torch.testing.assert_close(model(x), whole)
    assert attention.heads == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads": 5}, "heads must divide dim, got 5 heads for dim 192"),
        ({"patch": 5}, "patch must divide image_size, got patch 5 for image_size 32"),
        ({"depth": True}, "depth is a whole number from 1 up, got True"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        models.vit(**arguments)
