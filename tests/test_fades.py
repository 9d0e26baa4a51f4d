"""Fades: how a targeted weight goes to zero."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fadeout import Decay, Fade, Latent, Progressive, SelectiveWeightDecay, schedules

PENALTIES = pytest.mark.parametrize("penalty", ["l2", "l1", "smooth_l1"])
NUMBERS = st.lists(st.floats(-5, 5), min_size=1, max_size=6)
STEPS = st.integers(1, 5000)
GROUP = {"lr": 0.1, "weight_decay": 5e-4}


# Progressive: its constants may move, so these are the properties that must not ---------------------


@given(STEPS)
def test_progressive_has_its_full_target_and_factor_zero_at_the_last_step(steps):
    fade, last = Progressive(), (steps - 1) / steps
    assert fade.target(last, steps) == 1.0
    assert fade.factor(last, steps, GROUP) == 0.0
    assert not fade.shrink(torch.tensor([3.0, -1e30]), fade.dose(last, steps, GROUP)).any()


@given(STEPS, st.floats(0, 1), st.floats(0, 1))
def test_progressive_grows_steadily(steps, one, other):
    fade, (early, late) = Progressive(), sorted((one, other))
    assert 0 <= fade.target(early, steps) <= fade.target(late, steps) <= 1
    assert 1 >= fade.factor(early, steps, GROUP) >= fade.factor(late, steps, GROUP) >= 0


@given(st.integers(100, 5000))
def test_progressive_starts_gently(steps):
    """A weight that is targeted by mistake must have time to recover."""
    fade = Progressive()
    assert fade.target(0.0, steps) < 0.2
    assert fade.factor(0.0, steps, GROUP) > 0.8


@given(STEPS, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_a_target_by_ratios_grows_steadily_and_ends_where_it_should(steps, sparsity, one, other):
    fade, (early, late) = Latent(), sorted((one, other))
    targets = [fade.targeted(sparsity, fade.target(p, steps)) for p in (early, late, 0.5)]
    assert 0 <= targets[0] <= targets[1] <= targets[2] == sparsity


def test_progressive_knows_neither_learning_rate_nor_decay():
    fade = Progressive()
    assert fade.dose(0.3, 100, {}) == fade.dose(0.3, 100, {"lr": 7.0, "weight_decay": 9.0})


@given(NUMBERS, st.floats(0, 0.99))
def test_progressive_multiplies_by_its_factor(numbers, progress):
    fade, weight = Progressive(), torch.tensor(numbers, dtype=torch.float64)
    faded = fade.shrink(weight, fade.dose(progress, 100, {}))
    torch.testing.assert_close(faded, weight * fade.factor(progress, 100, {}))


def test_progressive_acts_after_the_step_and_on_the_targeted_weights():
    fade = Progressive()
    assert not fade.on_gradient
    assert fade.selective
    assert fade == Progressive()


# Decay: the paper's -----------------------------------------------------------------------------------


def test_penalties_worked_out_by_hand():
    """Dose 0.5. L2 divides by 1.5, L1 takes 0.5 off, smooth L1 does the one up to 1.5, the other above."""
    weight = torch.tensor([3.0, -0.3, 1.2])
    expected = {"l2": [2.0, -0.2, 0.8], "l1": [2.5, 0.0, 0.7], "smooth_l1": [2.5, -0.2, 0.8]}
    slopes = {"l2": [1.5, -0.15, 0.6], "l1": [0.5, -0.5, 0.5], "smooth_l1": [0.5, -0.15, 0.5]}
    for penalty in expected:
        fade = Decay(1.0, penalty=penalty)
        assert fade.shrink(weight, 0.5).tolist() == pytest.approx(expected[penalty])
        assert fade.gradient(weight, 0.5).tolist() == pytest.approx(slopes[penalty])


@PENALTIES
@given(NUMBERS, st.floats(0, 10))
def test_the_gradient_is_that_of_the_loss(penalty, numbers, dose):
    fade = Decay(1.0, penalty=penalty)
    weight = torch.tensor(numbers, dtype=torch.float64, requires_grad=True)
    fade.loss(weight, dose).backward()
    torch.testing.assert_close(fade.gradient(weight.detach(), dose), weight.grad)


@PENALTIES
@given(NUMBERS, st.floats(0, 10))
def test_the_implicit_step_is_proximal(penalty, numbers, dose):
    """It minimises ``dose * loss(x) + (x - w)^2 / 2``: the neighbours of its answer are worse."""
    fade = Decay(1.0, penalty=penalty)
    for number in numbers:
        weight = torch.tensor([number], dtype=torch.float64)

        def cost(x, weight=weight):
            return float(fade.loss(x, dose) + (x - weight).square().sum() / 2)

        best = fade.shrink(weight, dose)
        for aside in (-1e-4, 1e-4, -1e-2, 1e-2):
            assert cost(best + aside) >= cost(best)


@PENALTIES
@given(st.floats(-5, 5), st.floats(0, 1e300))
def test_the_implicit_step_never_overshoots(penalty, number, dose):
    faded = float(Decay(1.0, penalty=penalty).shrink(torch.tensor(number, dtype=torch.float64), dose))
    assert abs(faded) <= abs(number)
    assert faded == 0 or (faded > 0) == (number > 0)


@PENALTIES
def test_an_infinite_dose_leaves_exactly_nothing(penalty):
    weight = torch.tensor([3.0, -0.3, 0.0])
    assert Decay(1.0, penalty=penalty).shrink(weight, math.inf).tolist() == [0.0, 0.0, 0.0]


def test_the_dose_is_strength_times_mu_and_with_the_learning_rate_after_the_step():
    gradient, implicit = (Decay(schedules.linear(0, 100), mode=m) for m in ("gradient", "implicit"))
    assert gradient.dose(0.25, 10, GROUP) == pytest.approx(25 * 5e-4)
    assert implicit.dose(0.25, 10, GROUP) == pytest.approx(25 * 5e-4 * 0.1)
    assert Decay(2.0, weight_decay=3.0).dose(0.9, 10, GROUP) == pytest.approx(6.0)


def test_the_factor_of_a_dose():
    assert Decay(2.0, weight_decay=3.0).factor(0.0, 10, GROUP) == pytest.approx(1 - 0.6)
    assert Decay(2.0, weight_decay=3.0, mode="implicit").factor(0.0, 10, GROUP) == pytest.approx(1 / 1.6)
    assert math.isnan(Decay(2.0, weight_decay=3.0, penalty="l1").factor(0.0, 10, GROUP))


def test_the_published_form_is_the_default():
    fade = Decay(1.0)
    assert (fade.mode, fade.penalty, fade.selective, fade.weight_decay) == ("gradient", "l2", True, None)
    assert fade.on_gradient
    assert fade.target(0.0, 10) == 1.0  # the paper targets all that will go from the first step on
    with pytest.raises(TypeError):
        Decay(1.0, 5e-4)  # options go by keyword


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mode": "proximal"}, r"mode.*'gradient', 'implicit'.*'proximal'"),
        ({"penalty": "l3"}, r"penalty.*'l2', 'l1', 'smooth_l1'.*'l3'"),
        ({"weight_decay": 0.0}, r"weight_decay.*positive.*0.0"),
        ({"weight_decay": -1e-4}, r"weight_decay.*positive"),
        ({"weight_decay": math.nan}, r"weight_decay.*positive.*nan"),
        ({"weight_decay": math.inf}, r"weight_decay.*positive.*inf"),
        ({"strength": -1.0}, r"strength.*-1.0"),
        ({"strength": math.nan}, r"strength.*nan"),
        ({"strength": math.inf}, r"strength.*inf"),
    ],
)
def test_what_decay_refuses(arguments, words):
    with pytest.raises(ValueError, match=words):
        Decay(**{"strength": 1.0, **arguments})


def test_an_optimizer_without_a_learning_rate(bare):
    """As Adafactor with relative steps."""
    model = bare(w=[[1.0, 2.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    optimizer.param_groups[0]["lr"] = None
    with pytest.raises(ValueError, match="has no learning rate"):
        SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=10, fade=Decay(1.0, mode="implicit"))
    pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=10, fade=Decay(1.0))
    assert math.isnan(pruner.factor_now)


def test_a_schedule_that_leaves_its_range_is_reported_by_its_value(bare, push):
    model = bare(w=[[1.0, 2.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with pytest.raises(ValueError, match=r"strength.*-0.5"):
        Decay(lambda progress: 1 - 3 * progress, weight_decay=1.0, mode="implicit")
    fade = Decay(lambda progress: -0.5 if progress == 1 / 3 else 1.0, weight_decay=1.0, mode="implicit")
    SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=3, fade=fade)
    push(model, optimizer)
    with pytest.raises(ValueError, match=r"strength.*-0.5"):
        push(model, optimizer)


# A fade of one's own ----------------------------------------------------------------------------------


class Halving(Fade):
    def target(self, progress, steps):
        return 0.5 if progress < 0.5 else 1.0

    def dose(self, progress, steps, group):
        return 1.0

    def shrink(self, weight, dose):
        return weight / 2**dose


def test_a_fade_of_ones_own(bare, push):
    model = bare(w=[[1.0, 2.0, 3.0, 4.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=2, fade=Halving())
    push(model, optimizer)
    assert model.w.tolist() == [[0.5, 2.0, 3.0, 4.0]]
    push(model, optimizer)
    assert model.w.tolist() == [[0.25, 1.0, 3.0, 4.0]]
    assert math.isnan(pruner.factor_now)  # it did not say


def test_latents_keep_their_range():
    """Fourth powers of none of these are floats; at the threshold, and at zero, nothing is left."""
    latent = torch.tensor([1e30, -1e-30, 2e-12, -1e-12, 0.0])
    left = Latent().sparse(latent, 1e-12)
    assert left[0] == 1e30
    assert left[1:].tolist() == [0, pytest.approx(2e-12 * (15 / 16) ** 0.25), 0, 0]
