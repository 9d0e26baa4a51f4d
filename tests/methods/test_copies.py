"""Pruners copied and pickled: without hooks, and with the same end once they are attached again."""

import copy
import pickle
from importlib.util import find_spec

import pytest
import torch

import fadeout
from fadeout import Channels, Decay, Elements, Progressive, criteria
from fadeout.methods import ACDC, HESSO, ST3, GradualMagnitudePruning, GrowingRegularization, RigL
from fadeout.methods.external.depgraph import DepGraph
from fadeout.methods.external.pat import PAT
from fadeout.methods.slimming import Slimming

IMAGE = torch.zeros(1, 1, 8, 8)
WAYS = {"copied": copy.deepcopy, "pickled": lambda three: pickle.loads(pickle.dumps(three))}
PRUNERS = {
    "latent": (fadeout.SelectiveWeightDecay, {}),
    "progressive": (fadeout.SelectiveWeightDecay, {"fade": Progressive(), "structure": Elements("layer")}),
    "channels": (fadeout.SelectiveWeightDecay, {"structure": Channels(IMAGE)}),
    "average": (
        fadeout.SelectiveWeightDecay,
        {"criterion": criteria.moving_average(criteria.taylor), "fade": Decay(1.0, weight_decay=0.01)},
    ),
    **{each.__name__: (each, {}) for each in (GradualMagnitudePruning, RigL, ACDC, ST3)},
    **{each.__name__: (each, {"structure": Channels(IMAGE)}) for each in (HESSO, GrowingRegularization)},
    "slimming": (Slimming, {"structure": Channels(IMAGE), "strength": 1e-3, "sparsity": None}),
}
PRUNERS |= {"PAT": (PAT, {})} if find_spec("torchao") else {}
PRUNERS |= {"DepGraph": (DepGraph, {"structure": Channels(IMAGE)})} if find_spec("torch_pruning") else {}


def train(model, optimizer, first, last):
    for number in range(first, last):
        torch.manual_seed(number)
        optimizer.zero_grad()
        model(torch.randn(4, 1, 8, 8)).square().mean().backward()
        optimizer.step()


@pytest.mark.filterwarnings("ignore:no weight is left", "ignore:remove")
@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("kind", list(PRUNERS))
def test_ends_as_the_original_does(kind, way, hooks_on):
    method, arguments = PRUNERS[kind]
    arguments = {name: value for name, value in {"sparsity": 0.5, **arguments}.items() if value is not None}
    model = fadeout.models.smallcnn(norm=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pruner = method(model, optimizer, steps=12, **arguments)
    train(model, optimizer, 0, 5)
    copied, stepped, other = WAYS[way]((model, optimizer, pruner))
    assert hooks_on(stepped) == 0
    other.attach(stepped)
    train(model, optimizer, 5, 12)
    train(copied, stepped, 5, 12)
    pruner.remove()
    other.remove()
    assert all(map(torch.equal, model.parameters(), copied.parameters()))
    assert repr(other) == repr(pruner)
