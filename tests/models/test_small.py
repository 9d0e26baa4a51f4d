"""The network of the demo: its size by hand, with norms and without, its trace."""

import pytest
import torch
from support.models import check_training_and_trace, conv, linear, norm, size

from fadeout import models


def test_its_size_by_hand():
    total = conv(1, 16, 3) + 16 + conv(16, 32, 3) + 32  # 8 by 8 becomes 4
    total += linear(32 * 4 * 4, 64) + linear(64, 10)
    assert size(models.smallcnn()) == total == 38_282
    assert size(models.smallcnn(norm=True)) == total + norm(16) + norm(32) + norm(64)


@pytest.mark.parametrize("with_norms", [False, True])
def test_forward_backward_and_trace(with_norms):
    model, x = models.smallcnn(num_classes=7, norm=with_norms), torch.randn(2, 1, 8, 8)
    assert model(x).shape == (2, 7)
    check_training_and_trace(model, [x], [x[:1]])
