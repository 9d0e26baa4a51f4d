"""DenseNet-40: its size by hand, its trace."""

import pytest
import torch
from support.models import check_training_and_trace, conv, norm, on_meta, size

from fadeout import models


def test_densenet40_by_hand():
    total, maps = conv(3, 16, 3), 16
    for block in range(3):
        for _ in range(12):
            total += norm(maps) + conv(maps, 12, 3)
            maps += 12
        total += norm(maps) + conv(maps, maps, 1) if block < 2 else 0
    total += norm(maps) + maps * 10 + 10
    assert maps == 448
    assert size(on_meta("densenet40")) == total == 1_019_722


def test_forward_backward_and_trace():
    model, x = models.densenet40(num_classes=7, growth=2), torch.randn(2, 3, 16, 16)
    assert model(x).shape == (2, 7)
    check_training_and_trace(model, [x], [x[:1]])


def test_wrong_arguments():
    with pytest.raises(ValueError, match="growth is a whole number from 1 up, got 0"):
        models.densenet40(growth=0)
