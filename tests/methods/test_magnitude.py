"""The rivals: one-shot, iterative and gradual magnitude pruning, and no pruning at all."""

import itertools

import pytest
import torch
from torch import nn

from fadeout import Elements, Masks, NoPruning, SelectiveWeightDecay, criteria, schedules
from fadeout.methods import GradualMagnitudePruning, iterative, one_shot

SPARSITIES = pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.77, 0.95])


def zeros(model):
    return {n: p == 0 for n, p in model.named_parameters() if p.dim() >= 2}


def count(marks):
    return sum(int(mark.count_nonzero()) for mark in marks.values())


# One-shot ---------------------------------------------------------------------------------------------


def test_one_shot_worked_out_by_hand(bare):
    model = bare(a=[[1.0, -4.0]], b=[[-2.0], [3.0]], bias=[0.5])
    masks = one_shot(model, 0.5)
    assert model.a.tolist() == [[0.0, -4.0]]
    assert model.b.tolist() == [[0.0], [3.0]]
    assert model.bias.tolist() == [0.5]
    assert {n: m.tolist() for n, m in masks.items()} == {"a": [[False, True]], "b": [[False], [True]]}
    assert model.a.requires_grad


def test_one_shot_in_each_layer(bare):
    model = bare(a=[[1.0, -4.0]], b=[[-20.0], [30.0]])
    one_shot(model, 0.5, structure=Elements(scope="layer"))
    assert model.a.tolist() == [[0.0, -4.0]]
    assert model.b.tolist() == [[0.0], [30.0]]


def test_one_shot_takes_names_and_leaves_the_rest(bare):
    model = bare(a=[[1.0, -4.0]], b=[[-2.0], [3.0]])
    assert list(one_shot(model, 0.5, prunable=["b"])) == ["b"]
    assert model.a.tolist() == [[1.0, -4.0]]
    assert model.b.tolist() == [[0.0], [3.0]]


def test_one_shot_with_the_gradients_that_are_there(bare):
    model = bare(a=[[1.0, -4.0]], b=[[-2.0], [3.0]])
    model.a.grad = torch.tensor([[8.0, -0.1]])  # |w g| is 8, 0.4 and, without a gradient, 0, 0
    one_shot(model, 0.75, criterion=criteria.taylor)
    assert model.a.tolist() == [[1.0, 0.0]]
    assert model.b.tolist() == [[0.0], [0.0]]


def test_one_shot_without_the_gradients_that_it_looks_at(bare):
    model = bare(a=[[1.0, -4.0]])
    with pytest.raises(ValueError, match=r"criterion taylor scores all weights zero.*backward\(\)"):
        one_shot(model, 0.5, criterion=criteria.taylor)
    assert model.a.tolist() == [[1.0, -4.0]]
    one_shot(model, 0.5, criterion=lambda weight, gradient: -weight.abs())
    assert model.a.tolist() == [[1.0, 0.0]]


def test_one_shot_scores_narrow_weights_in_float32(bare):
    """As criteria are promised: rounded to bfloat16, many different products would tie."""
    seen = []

    def criterion(weight, gradient):
        seen.append((weight.dtype, gradient.dtype))
        return criteria.taylor(weight, gradient)

    model = bare(w=torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16))
    model.w.grad = torch.ones_like(model.w)
    one_shot(model, 0.5, criterion=criterion)
    assert seen == [(torch.float32, torch.float32)]


@SPARSITIES
def test_one_shot_takes_the_exact_count(make_task, sparsity):
    model = make_task("conv").model
    masks = one_shot(model, sparsity)
    total = sum(p.numel() for p in model.parameters() if p.dim() >= 2)
    assert (masks.total, masks.total - masks.left) == (total, round(sparsity * total))
    assert count(zeros(model)) == round(sparsity * total)


def test_one_shot_prunes_a_wrapped_model():
    model = nn.Linear(4, 4)
    assert list(one_shot(nn.DataParallel(model), 0.5)) == ["weight"]
    assert model.weight.count_nonzero() == 8


# Iterative --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "criterion", [criteria.magnitude, criteria.gradient_magnitude, criteria.lamp], ids=lambda c: c.__name__
)
@SPARSITIES
def test_iterative_prunes_in_equal_parts_and_what_is_gone_stays_gone(make_task, train, criterion, sparsity):
    task = make_task("matrices")
    task.loss(0).backward()
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.1, momentum=0.9)
    total, seen = 72, []

    def fine_tune(number):
        train(task, optimizer, 5 * number, start=5 * number - 5)
        task.loss(0).backward()
        seen.append((number, zeros(task.model)))

    masks = iterative(task.model, optimizer, fine_tune, sparsity=sparsity, rounds=4, criterion=criterion)
    assert [number for number, _ in seen] == [1, 2, 3, 4]
    assert [count(z) for _, z in seen] == [round(sparsity * i / 4 * total) for i in (1, 2, 3, 4)]
    for (_, early), (_, late) in itertools.pairwise(seen):
        assert not any((early[name] & ~late[name]).any() for name in early)
    assert masks.left == total - round(sparsity * total)
    for name, gone in zeros(task.model).items():
        assert torch.equal(gone, ~masks[name])


def test_iterative_lets_go_of_the_optimizer_in_the_end(make_task, hooks_on):
    task = make_task("mlp")
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.1)
    seen = []
    iterative(task.model, optimizer, lambda n: seen.append(hooks_on(optimizer)), sparsity=0.5, rounds=2)
    assert min(seen) > 0
    assert hooks_on(optimizer) == 0


def test_iterative_lets_go_when_fine_tuning_fails(make_task, hooks_on):
    task = make_task("mlp")
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.1)
    with pytest.raises(ZeroDivisionError):
        iterative(task.model, optimizer, lambda number: 1 / 0, sparsity=0.5)
    assert hooks_on(optimizer) == 0


# Gradual ----------------------------------------------------------------------------------------------


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
def test_gradual_pruning_keeps_every_zero_and_ends_with_the_exact_count(make_task, train, criterion, scope):
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


@SPARSITIES
@pytest.mark.parametrize("steps", [1, 2, 3, 10])
def test_gradual_pruning_is_complete_however_short(make_task, train, same_bits, steps, sparsity):
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


def test_gradual_pruning_with_a_schedule_of_ones_own(bare, push):
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


# None -------------------------------------------------------------------------------------------------

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
