"""The authors' threshold: taken without the batch-norms, applied to them too."""

import torch
from torch import nn

from fadeout.experiments.paper.authors import AuthorsElements
from fadeout.methods import one_shot


def network():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, -2.0], [3.0, -4.0]]))
        model[0].bias.copy_(torch.tensor([0.5, 5.0]))
        model[1].weight.copy_(torch.tensor([0.1, 9.0]))
        model[1].bias.copy_(torch.tensor([-1.9, 2.0]))
    return model


def test_by_hand():
    model = network()
    # half of the six of the linear layer: 0.5, 1 and 2; so the threshold is 2, for the norm as well
    masks = one_shot(model, 0.5, structure=AuthorsElements())
    assert masks["0.weight"].tolist() == [[False, False], [True, True]]
    assert masks["0.bias"].tolist() == [False, True]
    assert masks["1.weight"].tolist() == [False, True]
    assert masks["1.bias"].tolist() == [False, False]
    again = one_shot(model, 0.7, structure=AuthorsElements(), before=masks)
    assert again["0.weight"].tolist() == [[False, False], [False, True]]


def test_a_target_that_takes_all_that_count_spares_higher_norms():
    masks = one_shot(network(), 0.95, structure=AuthorsElements())  # all six, of which the highest is 5
    assert {name: mask.sum().item() for name, mask in masks.items()} == {
        "0.weight": 0,
        "0.bias": 0,
        "1.weight": 1,
        "1.bias": 0,
    }


def test_a_target_that_takes_nothing():
    assert one_shot(network(), 0.01, structure=AuthorsElements()).left == 10
