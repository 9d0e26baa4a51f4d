"""What all that acts in steps shares: it counts them, and acts alone, on the model that it was built for."""

import copy
import sys
import threading

import pytest
import torch
from support.pruned import build, network, step
from torch import nn

import fadeout
from fadeout.methods import GradualMagnitudePruning
from fadeout.pruners.step_pruner import StepPruner


class Halving(StepPruner):
    """What takes part is halved after each step."""

    def __init__(self, model, optimizer, *, steps):
        super().__init__(model, optimizer, steps=steps, structure=fadeout.Elements())
        self.attach(self.optimizers)

    def end(self):
        for name in self.parameters:
            self.weight(name).mul_(0.5)


@pytest.fixture
def halving(bare):
    """A model with a matrix, a vector that does not take part, and what halves the matrix."""
    model = bare(w=[[4.0, 8.0]], b=[4.0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return model, optimizer, Halving(model, optimizer, steps=4)


def test_a_subclass_says_what_happens_after_a_step(halving, push):
    model, optimizer, pruner = halving
    seen = []
    for _ in range(4):
        push(model, optimizer, w=[[1.0, 1.0]])
        seen.append((pruner.steps_taken, pruner.progress))
    assert seen == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)]
    with pytest.warns(UserWarning, match="more steps than the steps=4"):
        push(model, optimizer, w=[[1.0, 1.0]])
    assert (pruner.steps_taken, pruner.progress) == (5, 1.0)
    assert model.w.tolist() == [[0.125, 0.25]]
    assert model.b.tolist() == [4.0]


def test_detached_it_neither_acts_nor_counts(halving, push):
    model, optimizer, pruner = halving
    pruner.detach()
    pruner.detach()
    push(model, optimizer)
    assert (model.w.tolist(), pruner.steps_taken) == ([[4.0, 8.0]], 0)
    assert "step 0 of 4, detached from the optimizer" in repr(pruner)
    pruner.attach(optimizer)
    push(model, optimizer)
    assert (model.w.tolist(), pruner.steps_taken) == ([[2.0, 4.0]], 1)


def test_the_state_is_what_was_counted(halving, push):
    model, optimizer, pruner = halving
    push(model, optimizer)
    state = pruner.state_dict()
    assert state == {"version": 1, "step": 1, "steps": 4, "shapes": {"w": (1, 2)}}
    push(model, optimizer)
    pruner.load_state_dict(state)
    assert pruner.steps_taken == 1


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("version", 2, "the state is of version 2, this fadeout reads 1"),
        ("version", "first", "no state as Halving.state_dict"),
        ("shapes", {"w": (2, 2)}, r"another model: 'w' has shape \(2, 2\) there and \(1, 2\) here"),
        ("shapes", None, "no state as Halving.state_dict"),
        ("steps", 5, "saved with steps=5, this pruner has steps=4"),
        ("step", "late", "no state as Halving.state_dict"),
        ("step", -1, "the state is of step -1"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(halving, push, part, value, words):
    model, optimizer, pruner = halving
    push(model, optimizer)
    with pytest.raises(ValueError, match=words):
        pruner.load_state_dict({**pruner.state_dict(), "step": 3, part: value})
    assert pruner.steps_taken == 1
    state = pruner.state_dict()
    del state[part]
    with pytest.raises(ValueError, match=f"'{part}' is missing"):
        pruner.load_state_dict(state)


def test_two_pruners_on_one_optimizer():
    model = network()
    first, optimizer = build(model)
    with pytest.raises(ValueError, match=r"'0\.weight' is already pruned .* call detach\(\)"):
        fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=10)
    with pytest.raises(ValueError, match="already pruned by a SelectiveWeightDecay"):
        build(model, GradualMagnitudePruning)
    first.detach()
    build(model)[0].detach()


def test_a_pruner_that_nobody_has_any_more_is_in_nobodys_way():
    """It and its optimizer hold each other: until Python looks for such pairs, both are there."""
    model = network()
    for _ in range(2):
        build(model)


def test_threads_build_pruners_at_once():
    """As in a search of hyperparameters by threads."""
    failed, built = [], []

    def build_many():
        try:
            built.extend(build(nn.Linear(4, 4))[0] for _ in range(100))
        except RuntimeError as error:
            failed.append(error)

    usual = sys.getswitchinterval()
    threads = [threading.Thread(target=build_many) for _ in range(4)]
    try:
        sys.setswitchinterval(1e-6)
        for thread in threads:
            thread.start()
    finally:
        for thread in threads:
            thread.join()
        sys.setswitchinterval(usual)
    assert not failed
    assert len(built) == 400


def test_two_pruners_on_different_parameters():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruners = [
        fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=10, prunable=[name])
        for name in ("0.weight", "2.weight")
    ]
    for _ in range(10):
        step(model, optimizer)
    assert [pruner.remove().sparsity for pruner in pruners] == [0.5, 0.5]


def new_head(model, optimizer):
    model[2] = nn.Linear(100, 5)
    optimizer.add_param_group({"params": list(model[2].parameters())})


def layer_replaced(model, optimizer):
    model[0] = nn.Linear(10, 100)


def assigned(model, optimizer):
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)


def tied_late(model, optimizer):
    model[2].weight = nn.Parameter(torch.zeros(5, 100))


def parametrized(model, optimizer):
    nn.utils.parametrizations.weight_norm(model[0])


@pytest.mark.parametrize("change", [new_head, layer_replaced, assigned, tied_late, parametrized])
@pytest.mark.parametrize("method", [fadeout.SelectiveWeightDecay, GradualMagnitudePruning])
def test_parameters_replaced_after_construction(change, method):
    model = network()
    pruner, optimizer = build(model, method)
    change(model, optimizer)
    with pytest.raises(
        ValueError, match=r"[02]\.weight.* of the model was replaced after the pruner was built"
    ):
        step(model, optimizer)
    with pytest.raises(ValueError, match="was replaced"):
        pruner.remove()


def test_a_state_that_is_loaded_after_detaching_leaves_the_pruner_detached():
    pruner, _ = build(network())
    pruner.detach()
    pruner.load_state_dict(pruner.state_dict())
    assert "detached" in repr(pruner)
