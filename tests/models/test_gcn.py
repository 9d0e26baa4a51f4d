"""The graph convolutional network, worked out by hand on two nodes."""

import pytest
import torch
from support.models import check_training_and_trace, linear, size

from fadeout import models


def test_its_size_by_hand():
    assert size(models.gcn()) == linear(1433, 16) + linear(16, 7) == 23_063


def test_each_node_gets_the_mean_of_its_neighbours():
    """Of two nodes that are neighbours: ``A relu(A x W1 + b1) W2 + b2``."""
    model = models.gcn(num_classes=1, width=2, features=1).eval()
    with torch.no_grad():
        model.conv1.weight.copy_(torch.tensor([[1.0, -1.0]]))
        model.conv1.bias.copy_(torch.tensor([0.0, 1.0]))
        model.conv2.weight.copy_(torch.tensor([[1.0], [10.0]]))
        model.conv2.bias.fill_(0.5)
    x, half = torch.tensor([[2.0], [6.0]]), torch.full((2, 2), 0.5)
    # the means are 4 and 4: hidden units relu(4), relu(-4 + 1)
    assert model(x, half).tolist() == [[4.5], [4.5]]
    # alone, each is itself: relu(2), relu(-2 + 1) and relu(6), relu(-6 + 1)
    assert model(x, torch.eye(2)).tolist() == [[2.5], [6.5]]


def test_forward_backward_and_trace():
    model = models.gcn(num_classes=3, width=4, features=5)
    x, adjacency = torch.randn(6, 5), torch.eye(6)
    assert model(x, adjacency).shape == (6, 3)
    check_training_and_trace(model, [x, adjacency], [x[:2], adjacency[:2, :2]])


@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan")])
def test_a_wrong_rate_is_named(rate):
    with pytest.raises(ValueError, match="dropout is a fraction from 0 to 1, got"):
        models.gcn(dropout=rate)
