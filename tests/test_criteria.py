"""Criteria: weight, gradient -> score."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fadeout import Decay, SelectiveWeightDecay, criteria

WEIGHTS = st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=12)
STILL = Decay(0.0, weight_decay=1.0, mode="implicit")  # lets a test look at scores while nothing fades


def scores(criterion, weight, gradient):
    return criterion(torch.tensor(weight), torch.tensor(gradient)).tolist()


def test_scores_worked_out_by_hand():
    weight, gradient = [-2.0, 1.0, 0.0], [0.5, -3.0, 5.0]
    assert scores(criteria.magnitude, weight, gradient) == [2.0, 1.0, 0.0]
    assert scores(criteria.gradient_magnitude, weight, gradient) == [0.5, 3.0, 5.0]
    assert scores(criteria.taylor, weight, gradient) == [1.0, 3.0, 0.0]


def test_lamp_worked_out_by_hand():
    """Squares 4, 1, 9, 1: not smaller than 9 is 9, than 4 is 13, than 1 is 15, for both ones."""
    expected = [4 / 13, 1 / 15, 1.0, 1 / 15]
    assert scores(criteria.lamp, [2.0, -1.0, 3.0, 1.0], [0.0] * 4) == pytest.approx(expected)


@given(WEIGHTS)
def test_lamp_equals_its_definition(values):
    weight = torch.tensor(values)
    square = weight.double().square()
    expected = [float(s / square[square >= s].sum()) if s > 0 else 0.0 for s in square]
    torch.testing.assert_close(
        criteria.lamp(weight, torch.zeros_like(weight)), torch.tensor(expected, dtype=torch.float64)
    )


@given(WEIGHTS)
def test_lamp_ranks_each_layer_as_magnitude_does(values):
    weight = torch.tensor(values)
    lamp, magnitude = criteria.lamp(weight, weight), weight.double().square()
    smaller = magnitude[:, None] < magnitude
    assert (lamp[:, None] < lamp)[smaller].all()
    assert torch.equal(lamp[:, None] == lamp, magnitude[:, None] == magnitude)


def test_lamp_keeps_the_shape_of_a_weight_that_is_not_contiguous():
    weight = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    turned = criteria.lamp(weight.t(), weight.t())
    assert torch.equal(turned, criteria.lamp(weight, weight).t())


def test_lamp_of_a_dead_layer_is_zero():
    assert scores(criteria.lamp, [0.0, 0.0], [1.0, 1.0]) == [0.0, 0.0]


def test_lamp_leaves_every_layer_its_largest_weight(bare):
    """Magnitude empties the layer whose weights are merely smaller; LAMP does not."""
    model = bare(wide=torch.arange(1.0, 21.0).view(4, 5), thin=torch.arange(1.0, 5.0).view(2, 2) * 1e-3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    left = {}
    for criterion in (criteria.magnitude, criteria.lamp):
        pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.9, steps=9, criterion=criterion)
        left[criterion] = pruner.masks()
        pruner.detach()
    assert not left[criteria.magnitude]["thin"].any()
    assert left[criteria.lamp]["thin"].flatten().tolist()[-1]
    assert left[criteria.magnitude].left == left[criteria.lamp].left == 24 - round(0.9 * 24)


def test_which_criteria_look_at_the_gradient():
    for criterion in (criteria.magnitude, criteria.lamp):
        assert criterion.needs_gradient is False
    for criterion in (criteria.gradient_magnitude, criteria.taylor):
        assert getattr(criterion, "needs_gradient", True)  # without the attribute it counts as needed
    assert criteria.moving_average(criteria.magnitude).needs_gradient


def test_moving_average_worked_out_by_hand():
    average = criteria.moving_average(criteria.taylor, decay=0.75)
    assert average(torch.tensor([2.0]), torch.tensor([-3.0])).tolist() == [6.0]
    assert average.update(torch.tensor([4.0]), torch.tensor([8.0])).tolist() == [5.0]


@pytest.mark.parametrize("decay", [1.0, -0.1, float("nan")])
def test_moving_average_refuses_a_decay_outside_its_range(decay):
    with pytest.raises(ValueError, match="decay"):
        criteria.moving_average(criteria.taylor, decay=decay)


def test_moving_average_remembers_what_the_last_gradient_forgot(bare, push):
    """Gradients 10, 1, then 0, 1: the last alone condemns the first weight, the average the second."""
    kept = {}
    for criterion in (criteria.gradient_magnitude, criteria.moving_average(criteria.gradient_magnitude)):
        model = bare(w=[[1.0, 1.0]])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        pruner = SelectiveWeightDecay(
            model, optimizer, sparsity=0.5, steps=9, criterion=criterion, fade=STILL
        )
        push(model, optimizer, w=[[10.0, 1.0]])
        push(model, optimizer, w=[[0.0, 1.0]])
        kept[criterion] = pruner.masks()["w"].tolist()
    assert list(kept.values()) == [[[False, True]], [[True, False]]]


@pytest.mark.parametrize("criterion", [criteria.gradient_magnitude, criteria.taylor])
def test_scores_of_the_last_step_serve_after_its_gradient_is_gone(bare, push, criterion):
    model = bare(w=[[1.0, 1.0, 1.0, 1.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=9, criterion=criterion, fade=STILL)
    with pytest.raises(ValueError, match=r"gradient.*no step"):
        pruner.masks()
    push(model, optimizer, w=[[4.0, -1.0, 2.0, -3.0]])
    optimizer.zero_grad()
    assert pruner.masks()["w"].tolist() == [[True, False, False, True]]
    with pytest.warns(UserWarning, match="not complete"):
        assert pruner.remove()["w"].tolist() == [[True, False, False, True]]


def test_a_criterion_of_ones_own(bare, push):
    """It sees one parameter at a time, float32 or wider, outside autograd, a missing gradient as zero."""
    seen = []

    def largest_first(weight, gradient):
        seen.append((weight.dtype, tuple(gradient.shape), float(gradient.abs().sum())))
        assert not weight.requires_grad
        assert not torch.is_grad_enabled()
        return -weight.abs()

    model = bare(a=torch.tensor([[1.0, 4.0]], dtype=torch.bfloat16), b=torch.tensor([[3.0], [2.0]]).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    pruner = SelectiveWeightDecay(
        model, optimizer, sparsity=0.5, steps=9, criterion=largest_first, fade=STILL
    )
    push(model, optimizer, a=[[1.0, 1.0]])
    assert seen == [(torch.float32, (1, 2), 2.0), (torch.float64, (2, 1), 0.0)]
    assert pruner.masks()["a"].tolist() == [[True, False]]
    assert pruner.masks()["b"].tolist() == [[False], [True]]
