"""One-shot and iterative magnitude pruning."""

import itertools

import pytest
import torch
from support.helpers import count, zeros
from torch import nn

from fadeout import Elements, criteria
from fadeout.methods import iterative, one_shot

SPARSITIES = pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.77, 0.95])


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
