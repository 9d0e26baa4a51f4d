"""Gradual magnitude pruning: what is gone stays gone, and the end is exact."""

import itertools

import pytest
import torch
from support.helpers import count, zeros

from fadeout import Elements, criteria, schedules
from fadeout.methods import GradualMagnitudePruning


@pytest.mark.parametrize(
    "criterion",
    [
        criteria.magnitude,
        criteria.gradient_magnitude,
        criteria.moving_average(criteria.taylor),
        criteria.lamp,
    ],
    ids=["magnitude", "gradient", "average", "lamp"],
)
@pytest.mark.parametrize("scope", ["network", "layer"])
def test_it_keeps_every_zero_and_ends_with_the_exact_count(make_task, train, criterion, scope):
    """Under Adam, whose moments push on without a gradient."""
    task = make_task("matrices")
    optimizer = torch.optim.Adam(task.model.parameters(), lr=0.05)
    pruner = GradualMagnitudePruning(
        task.model, optimizer, sparsity=0.8, steps=40, criterion=criterion, structure=Elements(scope=scope)
    )
    history = []
    train(task, optimizer, 40, after=lambda step: history.append(zeros(task.model)))
    for early, late in itertools.pairwise(history):
        assert not any((early[name] & ~late[name]).any() for name in early)
    counts = [count(marks) for marks in history]
    wanted = round(0.8 * 48) + round(0.8 * 24) if scope == "layer" else round(0.8 * 72)
    assert counts[0] < wanted / 2
    assert counts[-1] == wanted
    assert pruner.fade == 0.0
    masks = pruner.remove()
    for name, gone in history[-1].items():
        assert torch.equal(gone, ~masks[name])


@pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.77, 0.95])
@pytest.mark.parametrize("steps", [1, 2, 3, 10])
def test_it_is_complete_however_short(make_task, train, same_bits, steps, sparsity):
    task = make_task("matrices")
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.1)
    pruner = GradualMagnitudePruning(
        task.model, optimizer, sparsity=sparsity, steps=steps, structure=Elements(scope="layer")
    )
    train(task, optimizer, steps)
    before = {n: p.detach().clone() for n, p in task.model.named_parameters()}
    masks = pruner.remove()
    same_bits(dict(task.model.named_parameters()), before)
    assert masks.total - masks.left == round(sparsity * 48) + round(sparsity * 24)


def test_it_with_a_schedule_of_ones_own(bare, push):
    """One of four, then two; the zero stays although its gradient pulls."""
    model = bare(w=[[1.0, 2.0, 3.0, 4.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    target = schedules.linear(0.25, 0.75)
    pruner = GradualMagnitudePruning(model, optimizer, sparsity=target, steps=2)
    assert pruner.sparsity_now == 0.25
    push(model, optimizer, w=[[0.0, 0.0, 0.0, 0.0]])
    assert model.w.tolist() == [[0.0, 2.0, 3.0, 4.0]]
    assert pruner.sparsity_now == 0.5
    push(model, optimizer, w=[[-9.0, 0.0, 1.5, 0.0]])
    assert model.w.tolist() == [[0.0, 2.0, 0.0, 4.0]]  # the third had come down to 1.5
    assert pruner.factor_now == 0.0


def test_the_target_grows_by_a_cubic_from_a_tenth_to_three_quarters(bare, push):
    """Of 100 weights 50 are to go, and ``1 - (1 - t)^3`` of them are gone where t of the window is over."""
    model = bare(w=torch.arange(1.0, 101.0).view(1, 100))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    GradualMagnitudePruning(model, optimizer, sparsity=0.5, steps=20)
    gone = []
    for _ in range(20):
        push(model, optimizer, w=[[0.0] * 100])
        gone.append(int((model.w == 0).sum()))
    # after step s the window, of 13 steps from the second on, is over by (s - 2) / 13
    window = [min(max((s - 2) / 13, 0), 1) for s in range(1, 21)]
    assert gone == [round(50 * (1 - (1 - t) ** 3)) for t in window]
