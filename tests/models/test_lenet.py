"""LeNet-5, as it is usual and as the authors have it: sizes by hand, traces."""

import torch
from support.models import check_training_and_trace, conv, linear, size
from torch import nn

from fadeout import models
from fadeout.models.lenet import lenet5_authors


def test_lenet5_by_hand():
    total = conv(1, 6, 5) + 6 + conv(6, 16, 5) + 16  # 28 by 28 becomes 14, 10 and 5
    total += linear(16 * 5 * 5, 120) + linear(120, 84) + linear(84, 10)
    assert size(models.lenet5()) == total == 61_706


def test_the_authors_have_the_second_layer_twice_and_a_convolution_for_the_first_linear_layer():
    assert size(lenet5_authors()) - size(models.lenet5()) == conv(6, 16, 5) + 16


def test_forward_backward_and_trace():
    for build in (models.lenet5, lenet5_authors):
        model, x = build(num_classes=7), torch.randn(2, 1, 28, 28)
        assert model(x).shape == (2, 7)
        check_training_and_trace(model, [x], [x[:1]])


def test_the_authors_add_up_both_halves_of_the_second_layer():
    """With nothing in one half it is the usual network, whose weights then give the same numbers."""
    theirs, ours = lenet5_authors(), models.lenet5()
    nn.init.zeros_(theirs.conv2b.weight)
    nn.init.zeros_(theirs.conv2b.bias)
    alike = [("conv1", "conv1"), ("conv2a", "conv2"), ("conv3", "fc1"), ("fc1", "fc2"), ("fc2", "fc3")]
    for there, here in alike:
        old, new = theirs.get_submodule(there), ours.get_submodule(here)
        new.load_state_dict({"weight": old.weight.reshape(new.weight.shape), "bias": old.bias})
    x = torch.randn(2, 1, 28, 28)
    torch.testing.assert_close(theirs(x), ours(x))
