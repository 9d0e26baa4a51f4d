"""No pruning at all: the loop of the pruners serves it too, and nothing happens."""

import pytest
import torch

from fadeout import Masks, NoPruning, SelectiveWeightDecay
from fadeout.methods import GradualMagnitudePruning

INTERFACE = [
    "attach",
    "detach",
    "factor_now",
    "fade",
    "load_state_dict",
    "masks",
    "progress",
    "remove",
    "sparsity_now",
    "state_dict",
]


@pytest.mark.parametrize("method", [NoPruning, SelectiveWeightDecay, GradualMagnitudePruning])
def test_one_loop_serves_every_method(make_task, train, method):
    """A loop that uses the whole interface, and never asks what its pruner is."""
    task = make_task("mlp")
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.1)
    pruner = method(task.model, optimizer, sparsity=0.5, steps=10)
    assert [name for name in INTERFACE if not hasattr(pruner, name)] == []
    train(task, optimizer, 5)
    pruner.detach()
    pruner.attach(optimizer)
    state = pruner.state_dict()
    pruner.load_state_dict(state)
    train(task, optimizer, 10, start=5)
    for figure in (pruner.progress, pruner.factor_now, pruner.fade, pruner.sparsity_now):
        assert 0 <= figure <= 1
    assert pruner.masks().keys() == pruner.remove().keys()
    masks = pruner.remove()
    assert isinstance(masks, Masks)
    masks.apply(task.model)
    masks.hold(task.model, optimizer).remove()


def test_no_pruning_does_nothing(make_task, train, same_bits, hooks_on):
    ends = []
    for method in (None, NoPruning):
        task = make_task("mlp")
        optimizer = torch.optim.SGD(task.model.parameters(), lr=0.1)
        pruner = method and method(task.model, optimizer, sparsity=0.5, steps=10)
        train(task, optimizer, 10)
        assert hooks_on(optimizer) == 0
        ends.append(task.model)
    assert pruner.remove().sparsity == 0.0
    same_bits(*ends)


def test_nothing_is_left_to_say():
    pruner = NoPruning(torch.nn.Linear(2, 2), steps=7)
    assert len(pruner.masks()) == len(pruner.remove()) == 0
    assert pruner.summary().total.weights == 0
    assert pruner.complete
    assert pruner.state_dict() == {"steps": 7}
