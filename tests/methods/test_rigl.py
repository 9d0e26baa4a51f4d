"""RigL: a random sparse start, and connections that move to where the gradient is largest."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fadeout import Channels, Elements
from fadeout.methods import RigL
from fadeout.methods.rigl import erk

# The distribution -------------------------------------------------------------------------------------------


def test_layers_keep_weights_in_proportion_to_the_sum_of_their_sides():
    shapes = {"conv": (16, 8, 3, 3), "head": (10, 20)}  # sides of 30 in all, each
    assert erk(shapes, 100) == {"conv": 50, "head": 50}
    assert erk({"conv": (16, 8, 3, 3), "head": (10, 50)}, 90) == {"conv": 30, "head": 60}


def test_a_layer_that_is_too_small_for_its_share_stays_dense():
    """Sides of 5, 30 and 60: of 95 the first would keep 5, the others 30 and 60; it has 4."""
    assert erk({"a": (1, 4), "b": (10, 20), "c": (20, 40)}, 94) == {"a": 4, "b": 30, "c": 60}


def test_one_dense_layer_may_make_another_dense():
    shapes = {"a": (1, 2), "b": (3, 3), "c": (30, 30)}  # 20 over sides of 69: first a, then b overflows
    assert erk(shapes, 120) == {"a": 2, "b": 9, "c": 109}


@given(
    st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4), min_size=1, max_size=6),
    st.floats(0, 1, exclude_max=True),
)
def test_the_parts_add_up_and_fit(sides, density):
    shapes = {str(number): tuple(shape) for number, shape in enumerate(sides)}
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    left = round(density * sum(sizes.values()))
    kept = erk(shapes, left)
    assert sum(kept.values()) == left
    assert all(0 <= kept[name] <= sizes[name] for name in shapes)


# The start --------------------------------------------------------------------------------------------------


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 10))


def pruned(model, momentum=0.0, **arguments):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    return optimizer, RigL(model, optimizer, **{"sparsity": 0.9, "steps": 1000, **arguments})


def test_it_is_sparse_before_the_first_step():
    model = network()
    before = [model[n].weight.detach().clone() for n in (0, 2)]
    _, pruner = pruned(model)
    left = erk({"0": (30, 40), "2": (10, 30)}, 150)
    for n, old in zip((0, 2), before, strict=True):
        there = model[n].weight != 0
        assert int(there.sum()) == left[str(n)]
        assert torch.equal(model[n].weight[there], old[there])
    assert pruner.sparsity_now == 0.9
    assert (pruner.masks().left, pruner.fade) == (150, 0)


def test_the_start_depends_on_the_seed_alone():
    masks = []
    for seed, noise in ((0, 1), (0, 2), (1, 1)):
        model = network()
        torch.manual_seed(noise)
        masks.append(pruned(model, seed=seed)[1].masks()["0.weight"])
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


def test_a_network_that_is_sparse_already_stays_as_it_is():
    """So that a pruner that is built on loaded weights, to resume, does not touch them."""
    model = network()
    pruned(model)[1].detach()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pruned(model, seed=1)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


# Updates ----------------------------------------------------------------------------------------------------


def step(model, optimizer, gradient=1.0):
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    optimizer.step()


def test_how_many_connections_move_and_when():
    model = network()
    optimizer, pruner = pruned(model, steps=400)
    left = erk({"0": (30, 40), "2": (10, 30)}, 150)
    for number in range(400):
        before, weights = pruner.masks(), [p.detach().clone() for p in model.parameters()]
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape)
        before_grad = {n: p.grad.clone() for n, p in model.named_parameters()}
        optimizer.step()
        after = pruner.masks()
        k = 0.15 * (1 + math.cos(math.pi * number / 300)) if number in (0, 100, 200) else 0
        for name in before:
            count = int(k * left[name[0]])
            assert int(after[name].sum()) == left[name[0]]
            dropped = before[name] & ~after[name]
            grown = ~before[name] & after[name]
            assert int(dropped.sum()) == int(grown.sum()) <= count
            if not count:
                continue
            old = weights[0 if name[0] == "0" else 2].abs()
            lowest = old[before[name]].sort().values[:count]
            assert set(old[dropped].tolist()) <= set(lowest.tolist())
            slope = before_grad[name].abs()
            stay = before[name] & (old > lowest.max())
            assert torch.equal(  # the largest among those that had no connection, or have just lost it
                slope[after[name] & ~stay].sort().values, slope[~stay].sort().values[-count:]
            )
            assert not model.get_parameter(name)[grown].any()
        if k:  # no gradient step
            same = [
                torch.equal(w[w == p], p[w == p]) for w, p in zip(weights, model.parameters(), strict=True)
            ]
            assert all(same)
            assert torch.equal(weights[1], model[0].bias)


def test_drop_and_grow_by_hand(bare, push):
    """Of four connections half are dropped, 1 and 2; elsewhere 9 and 7 are the largest gradients."""
    model = bare(w=[[4.0, 1.0, 0.0, 0.0], [2.0, 3.0, 0.0, 0.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pruner = RigL(model, optimizer, sparsity=0.5, steps=8, alpha=0.5)
    push(model, optimizer, w=[[99.0, 6.0, 9.0, 5.0], [7.0, 99.0, 1.0, 2.0]])
    assert pruner.masks()["w"].tolist() == [[True, False, True, False], [True, True, False, False]]
    # 2 was dropped and grew again, as it was; 9 grows from zero
    assert model.w.tolist() == [[4, 0, 0, 0], [2, 3, 0, 0]]
    push(model, optimizer, w=[[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    expected = torch.tensor([[3.9, 0, -0.1, 0], [1.9, 2.9, 0, 0]])
    torch.testing.assert_close(model.w.detach(), expected)
    assert optimizer.state[model.w]["momentum_buffer"].tolist() == [[1, 0, 1, 0], [1, 1, 0, 0]]


def test_a_grown_weight_has_no_momentum(bare, push):
    """What the optimizer remembers of a connection, it forgets when that comes back."""
    model = bare(w=[[4.0, 1.0, 0.0, 0.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pruner = RigL(model, optimizer, sparsity=0.5, steps=40, alpha=1.0, every=2)
    push(model, optimizer)  # nothing moves without a gradient
    push(model, optimizer, w=[[1.0, 1.0, 1.0, 1.0]])
    push(model, optimizer, w=[[0.0, 0.0, 5.0, 0.0]])  # 0.98 of two connections is one: 1 goes, 5 comes
    assert pruner.masks()["w"].tolist() == [[True, False, True, False]]
    optimizer.state[model.w]["momentum_buffer"].fill_(8.0)
    push(model, optimizer, w=[[0.0, 0.0, 0.0, 0.0]])
    push(model, optimizer, w=[[0.0, 3.0, 0.0, 0.0]])
    momentum = optimizer.state[model.w]["momentum_buffer"].tolist()[0]
    assert pruner.masks()["w"][0, 1]
    assert momentum[1] == 0
    assert momentum[0] == pytest.approx(7.2)


def test_connections_that_are_gone_stay_at_zero(make_task, train):
    task = make_task("mlp")
    optimizer, pruner = pruned(task.model, momentum=0.9, sparsity=0.75, steps=30, every=5)
    left = []
    train(task, optimizer, 30, after=lambda step: left.append(pruner.masks()))
    for number, masks in enumerate(left):
        assert masks.left == 18
        moved = number and any(not torch.equal(masks[n], left[number - 1][n]) for n in masks)
        assert not moved or number in (5, 10, 15, 20)  # 25 is beyond three quarters
    assert sum(int((p == 0).sum()) for p in task.model.parameters() if p.dim() == 2) == 54
    assert pruner.remove().left == 18


def test_it_learns_which_connections_matter(bare):
    """A gradient finds the few inputs that count, wherever the random start was."""
    torch.manual_seed(0)
    wanted = torch.zeros(4, 50)
    wanted[torch.arange(4), torch.tensor([3, 14, 15, 40])] = 2.0
    model = bare(w=torch.randn(4, 50) / 7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    pruner = RigL(model, optimizer, sparsity=0.9, steps=400, every=10)
    for _ in range(400):
        optimizer.zero_grad()
        x = torch.randn(32, 50)
        (x @ (model.w - wanted).T).square().mean().backward()
        optimizer.step()
    assert pruner.masks()["w"][wanted != 0].all()
    torch.testing.assert_close(model.w.detach(), wanted, atol=1e-2, rtol=0)


def test_a_sparse_gradient(make_task, train):
    task = make_task("embedding")
    optimizer, pruner = pruned(task.model, sparsity=0.5, steps=40, every=10)
    train(task, optimizer, 40)
    assert pruner.remove().left == 15


# Mistakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"alpha": 0}, "alpha is a fraction above 0 and at most 1, got 0"),
        ({"until": 1.5}, "until is a fraction above 0 and at most 1, got 1.5"),
        ({"every": 0}, "every is the whole number of steps from one update to the next, got 0"),
        ({"structure": Elements(scope="layer")}, "structure is fadeout.Elements.., got Elements"),
        ({"structure": Channels(torch.zeros(1, 40))}, "structure is fadeout.Elements.., got .*Channels"),
        ({"sparsity": 90}, "Did you mean 0.9"),
    ],
)
def test_wrong_arguments(arguments, said):
    model = network()
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(ValueError, match=said):
        pruned(model, **arguments)
    assert all(map(torch.equal, before, model.parameters()))


def test_divergence_is_named():
    model = network()
    optimizer, _ = pruned(model, every=2)
    step(model, optimizer)
    step(model, optimizer, math.nan)
    with pytest.raises(ValueError, match=r"'0\.weight' holds NaN or infinite weights at step 2"):
        step(model, optimizer)
