"""Selective weight decay: equal to a ten-line reference, safe at any strength, free at removal."""

import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fadeout import Decay, Elements, Progressive, SelectiveWeightDecay, criteria, schedules

PAPER = schedules.exponential(0.1, 1e3)
OPTIMIZERS = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=5e-4),
    "nesterov": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda ps: torch.optim.Adam(ps, lr=0.01, weight_decay=1e-3),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.01, weight_decay=1e-2),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, lr=0.003, weight_decay=1e-3, momentum=0.5),
}
EVERY_OPTIMIZER = pytest.mark.parametrize("optimizer", OPTIMIZERS)
MODES = pytest.mark.parametrize("mode", ["gradient", "implicit"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])


@pytest.fixture
def prune(make_task):
    def build(kind, optimizer, *, dtype=torch.float64, **arguments):
        task = make_task(kind, dtype)
        optimizer = OPTIMIZERS[optimizer](task.model.parameters())
        return task, optimizer, SelectiveWeightDecay(task.model, optimizer, **arguments)

    return build


@pytest.fixture
def still(bare):
    """Parameters that the optimizer leaves where they are, so that only the pruner moves them.

    With no gradient SGD does nothing, whatever its learning rate; the rate of 1 makes a dose
    ``strength * weight_decay``.
    """

    def build(fade=None, *, sparsity=0.5, steps=10, structure=None, criterion=criteria.magnitude, **values):
        model = bare(**values)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        pruner = SelectiveWeightDecay(
            model,
            optimizer,
            sparsity=sparsity,
            steps=steps,
            structure=structure,
            criterion=criterion,
            fade=fade,
        )
        return model, optimizer, pruner

    return build


def implicit(factor, **kwargs):
    """A fade that multiplies by this factor at every step of :func:`still`."""
    return Decay(1 / factor - 1, weight_decay=1.0, mode="implicit", **kwargs)


# The reference ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mlp", "conv", "gru"])
@EVERY_OPTIMIZER
def test_the_published_form_equals_the_reference(
    prune, train, train_reference, make_task, close, kind, optimizer
):
    """Fifty steps of the paper's schedule, against a sort and autograd, to float64 precision."""
    task, mine, _ = prune(kind, optimizer, sparsity=0.7, steps=50, fade=Decay(PAPER))
    train(task, mine, 50)
    other = make_task(kind)
    train_reference(other, OPTIMIZERS[optimizer](other.model.parameters()), 50, 0.7, PAPER)
    close(task.model, other.model)


@pytest.mark.parametrize("kind", ["mlp", "conv", "gru"])
@EVERY_OPTIMIZER
def test_the_implicit_form_equals_its_reference(
    prune, train, train_reference, make_task, close, kind, optimizer
):
    fade = Decay(PAPER, mode="implicit")
    task, mine, _ = prune(kind, optimizer, sparsity=0.7, steps=50, fade=fade)
    train(task, mine, 50)
    other = make_task(kind)
    train_reference(other, OPTIMIZERS[optimizer](other.model.parameters()), 50, 0.7, PAPER, mode="implicit")
    close(task.model, other.model)


@pytest.mark.parametrize(
    "strength",
    [
        schedules.constant(30.0),
        schedules.linear(0.0, 200.0),
        schedules.cosine(0.0, 200.0),
        schedules.exponential(1e3, 0.1),  # decreasing, as in the paper's extended grid
        lambda progress: 200 * progress**2,
    ],
    ids=["constant", "linear", "cosine", "decreasing", "callable"],
)
def test_other_strengths_equal_the_reference(prune, train, train_reference, make_task, close, strength):
    task, mine, _ = prune("mlp", "sgd", sparsity=0.7, steps=30, fade=Decay(strength))
    train(task, mine, 30)
    other = make_task("mlp")
    train_reference(other, OPTIMIZERS["sgd"](other.model.parameters()), 30, 0.7, strength)
    close(task.model, other.model)


def test_a_number_is_a_constant_strength(prune, train, same_bits):
    ends = []
    for strength in (30.0, 30, schedules.constant(30.0)):
        task, optimizer, _ = prune("mlp", "sgd", sparsity=0.7, steps=20, fade=Decay(strength))
        train(task, optimizer, 20)
        ends.append(task.model)
    same_bits(ends[0], ends[1])
    same_bits(ends[0], ends[2])


def test_the_pruner_sees_the_progress_of_the_step(still, push):
    """At step s, counted from 0, progress is s / steps, and no more than 1."""
    seen = []

    def strength(progress):
        seen.append(progress)
        return 0.0

    model, optimizer, pruner = still(
        Decay(strength, weight_decay=1.0, mode="implicit"), steps=4, w=[[1.0, 2.0]]
    )
    seen.clear()  # a schedule is tried when the fade is built
    figures = []
    for _ in range(4):
        figures.append(pruner.progress)
        push(model, optimizer)
    assert figures == seen == [0.0, 0.25, 0.5, 0.75]
    assert pruner.progress == 1.0


def test_one_step_worked_out_by_hand(bare, push):
    """Of 1, -2, 3, -4 the first two are targeted: a mu = 0.5 adds 0.5 and -1 to their gradients of 1."""
    model = bare(w=[[1.0, -2.0], [3.0, -4.0]], bias=[0.1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fade = Decay(10.0, weight_decay=0.05)
    pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=9, fade=fade)
    push(model, optimizer, w=torch.ones(2, 2), bias=[0.0])
    assert model.w.flatten().tolist() == pytest.approx([0.85, -2.0, 2.9, -4.1])
    assert model.bias.tolist() == pytest.approx([0.1])
    assert pruner.masks()["w"].tolist() == [[False, False], [True, True]]
    assert pruner.fade == pytest.approx(math.sqrt((0.85**2 + 2**2) / (2.9**2 + 4.1**2)))


def test_one_implicit_step_worked_out_by_hand(bare, push):
    """The step comes first: it brings 3 down to 1.5, which is then targeted instead of the 2."""
    model = bare(w=[[1.0, -2.0, 3.0, -4.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fade = Decay(100.0, weight_decay=0.1, mode="implicit")
    SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=9, fade=fade)
    push(model, optimizer, w=[[0.0, 0.0, 15.0, 0.0]])
    assert model.w.flatten().tolist() == pytest.approx([0.5, -2.0, 0.75, -4.0])


# Options ----------------------------------------------------------------------------------------------


@MODES
def test_not_selective_decays_every_prunable_weight(bare, push, mode):
    """a mu = 1 at a learning rate of 0.25 takes a quarter off, or divides by 1.25."""
    model = bare(w=[[1.0, -2.0, 3.0, -4.0]], bias=[5.0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    fade = Decay(10.0, weight_decay=0.1, mode=mode, selective=False)
    pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=1, fade=fade)
    push(model, optimizer)
    factor = {"gradient": 0.75, "implicit": 0.8}[mode]
    assert model.w.flatten().tolist() == pytest.approx([factor * w for w in (1, -2, 3, -4)])
    assert model.bias.tolist() == [5.0]
    with pytest.warns(UserWarning, match="not complete"):
        assert pruner.remove().left == 2


@pytest.mark.parametrize("penalty", ["l1", "smooth_l1"])
@MODES
def test_other_penalties_take_their_own_step(bare, push, mode, penalty):
    """Dose 0.25: L1 takes 0.25 off either weight, smooth L1 off the one above 1, and scales the other."""
    model = bare(w=[[-0.5, 2.0, 30.0, 40.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    fade = Decay(10.0, weight_decay=0.1, mode=mode, penalty=penalty)
    SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=9, fade=fade)
    push(model, optimizer)
    small = -0.25
    if penalty == "smooth_l1":
        small = -0.5 * 0.75 if mode == "gradient" else -0.5 / 1.25
    assert model.w.flatten().tolist() == pytest.approx([small, 1.75, 30.0, 40.0])


@MODES
def test_each_layer_fades_its_own(bare, push, mode):
    model = bare(small=[[1.0, -2.0]], large=[[10.0, -20.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    pruner = SelectiveWeightDecay(
        model,
        optimizer,
        sparsity=0.5,
        steps=9,
        structure=Elements(scope="layer"),
        fade=Decay(10.0, weight_decay=0.1, mode=mode),
    )
    push(model, optimizer)
    factor = {"gradient": 0.75, "implicit": 0.8}[mode]
    assert model.small.flatten().tolist() == pytest.approx([factor, -2.0])
    assert model.large.flatten().tolist() == pytest.approx([10 * factor, -20.0])
    assert pruner.masks()["large"].tolist() == [[False, True]]


@pytest.mark.parametrize("fade", [implicit(0.5), Progressive()], ids=["decay", "progressive"])
def test_a_sparsity_that_is_a_schedule_is_followed(still, push, fade):
    """From none to three of four: the count of weights that have moved grows by one a step, at most."""
    model, optimizer, pruner = still(
        fade, sparsity=schedules.linear(0.0, 0.75), steps=3, w=[[4.0, 3.0, 2.0, 1.0]]
    )
    moved = []
    for step in range(3):
        assert pruner.sparsity_now == pytest.approx(0.25 * step)
        push(model, optimizer)
        moved.append(int((model.w != torch.tensor([[4.0, 3.0, 2.0, 1.0]])).sum()))
    assert moved == [0, 1, 2]
    assert pruner.sparsity_now == 0.75
    assert pruner.masks().left == 1  # what would stay if removal, to the final target, came now


def test_decay_targets_everything_at_once_and_progressive_grows(still):
    *_, decay = still(implicit(0.5), sparsity=0.5, steps=100, w=[[1.0, 2.0]])
    assert decay.sparsity_now == 0.5
    *_, progressive = still(sparsity=0.5, steps=100, w=[[1.0, 2.0]])
    assert progressive.sparsity_now < 0.1
    assert progressive.masks().left == 1


@pytest.mark.parametrize(
    "criterion",
    [
        criteria.magnitude,
        criteria.lamp,
        criteria.taylor,
        criteria.gradient_magnitude,
        criteria.moving_average(criteria.taylor, 0.5),
        lambda weight, gradient: (weight - 0.1).abs(),
    ],
    ids=["magnitude", "lamp", "taylor", "gradient", "average", "own"],
)
@pytest.mark.parametrize("fade", [Progressive(), Decay(1e30, mode="implicit")], ids=["progressive", "decay"])
def test_every_criterion_ends_at_the_exact_count(prune, train, snapshot, criterion, fade):
    task, optimizer, pruner = prune(
        "mlp", "adamw", sparsity=0.6, steps=20, criterion=criterion, fade=fade, structure=Elements("layer")
    )
    train(task, optimizer, 20)
    before = snapshot(task.model)
    masks = pruner.remove()
    assert masks.total - masks.left == round(0.6 * 48) + round(0.6 * 24)
    for name, mask in masks.items():
        weight = dict(task.model.named_parameters())[name]
        assert torch.equal(weight, before[name] * mask)
        assert before[name][~mask].abs().max() < 1e-20


# Extreme strengths and small numbers ------------------------------------------------------------------


@pytest.mark.parametrize("strength", [1e30, 1e300])
@pytest.mark.parametrize("penalty", ["l2", "l1", "smooth_l1"])
@EVERY_OPTIMIZER
def test_the_implicit_form_survives_any_strength(prune, train, optimizer, penalty, strength):
    fade = Decay(strength, mode="implicit", penalty=penalty)
    task, optimizer, pruner = prune(
        "mlp", optimizer, dtype=torch.float32, sparsity=0.7, steps=30, fade=fade, structure=Elements("layer")
    )
    train(task, optimizer, 30)
    gone = {name: ~mask for name, mask in pruner.masks().items()}
    weights = dict(task.model.named_parameters())
    assert all(p.isfinite().all() for p in weights.values())
    assert all(weights[name][mask].abs().max() < 1e-20 for name, mask in gone.items())
    assert pruner.fade < 1e-20
    pruner.remove()
    assert all(not weights[name][mask].any() for name, mask in gone.items())


@EVERY_OPTIMIZER
@DTYPES
def test_the_gradient_form_reports_a_strength_that_it_cannot_take(prune, train, optimizer, dtype):
    """By an error, by a warning at the step or at the latest by one at removal; and never by silent NaN."""
    task, optimizer, pruner = prune("mlp", optimizer, dtype=dtype, sparsity=0.7, steps=10, fade=Decay(1e30))
    reported = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            train(task, optimizer, 10)
            pruner.remove()
        except ValueError as error:
            reported.append(str(error))
    reported += [str(warning.message) for warning in caught]
    assert any("mode='implicit'" in text or "not complete" in text for text in reported)


def test_divergence_is_told_before_it_happens(bare, push):
    """Under SGD, lr a mu >= 2 overshoots: one warning, which names the way out."""
    model = bare(w=[[1.0, -2.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=9, fade=Decay(30.0, weight_decay=1.0))
    with pytest.warns(UserWarning, match=r"step 0.*lr \* strength \* mu = 3.*mode='implicit'"):
        push(model, optimizer)
    push(model, optimizer)  # once: a second warning would be an error here


@MODES
@DTYPES
def test_a_targeted_weight_never_stays_among_the_denormal_numbers(bare, push, mode, dtype):
    """At 16 times the smallest normal number it halves four times, and is then exactly zero.

    The other targeted weight, a power of two far above, shows that all but the last halving are real.
    """
    tiny = torch.finfo(dtype).tiny
    model = bare(w=torch.tensor([[16 * tiny, -1.0, 2.0, 4.0]], dtype=dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    strength = {"gradient": 0.5, "implicit": 1.0}[mode]
    fade = Decay(strength, weight_decay=1.0, mode=mode)
    SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=9, fade=fade)
    seen = []
    for _ in range(5):
        push(model, optimizer)
        seen.append(model.w.tolist()[0][:2])
    assert seen == [[16 * tiny / 2**i if i < 5 else 0.0, -1 / 2**i] for i in range(1, 6)]


@MODES
def test_denormal_weights_that_are_not_targeted_stay(bare, push, mode):
    def largest(weight, gradient):
        return -weight.abs()

    largest.needs_gradient = False
    model = bare(w=[[1e-40, 1.0]])
    before = model.w[0, 0].item()
    assert before != 0
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    fade = Decay(0.5, weight_decay=1.0, mode=mode)
    SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=9, criterion=largest, fade=fade)
    push(model, optimizer)
    assert model.w[0, 0].item() == before
    assert model.w[0, 1].item() < 1.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("factor", "steps"), [(0.9, 20), (0.99, 150), (0.999, 700), (0.9999, 1500)])
def test_narrow_parameters_fade_as_wide_ones_do(still, push, dtype, factor, steps):
    """0.999 w is w in bfloat16; saved up, the factors bring it down all the same."""
    value = torch.tensor([[1.0, -0.5, 8.0, 9.0]], dtype=dtype)
    model, optimizer, _ = still(implicit(factor), steps=steps, w=value)
    for _ in range(steps):
        push(model, optimizer)
    faded = factor**steps
    assert model.w.flatten().tolist() == pytest.approx([faded, -faded / 2, 8.0, 9.0], rel=0.1)


@pytest.mark.parametrize(
    ("dtype", "optimizer"),
    # Not AdamW in float16: its eps of 1e-8 is zero there, and it divides zero by zero without any pruner.
    [(torch.bfloat16, "sgd"), (torch.bfloat16, "adamw"), (torch.float16, "sgd")],
)
def test_narrow_networks_end_with_free_removal(prune, train, snapshot, same_bits, optimizer, dtype):
    task, optimizer, pruner = prune(
        "mlp", optimizer, dtype=dtype, sparsity=0.6, steps=60, structure=Elements("layer")
    )
    train(task, optimizer, 60)
    before = snapshot(task.model)
    masks = pruner.remove()
    same_bits(snapshot(task.model), before)
    assert masks.total - masks.left == round(0.6 * 48) + round(0.6 * 24)


# Removal ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 200])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "rmsprop"])
@pytest.mark.parametrize("sparsity", [0.5, 0.9])
def test_removal_after_the_default_fade_changes_nothing(
    prune, train, snapshot, same_bits, steps, optimizer, sparsity
):
    """To the last bit, and without a warning, however short the training."""
    task, optimizer, pruner = prune(
        "conv", optimizer, dtype=torch.float32, sparsity=sparsity, steps=steps, structure=Elements("layer")
    )
    train(task, optimizer, steps)
    assert pruner.fade == 0.0
    before = snapshot(task.model)
    masks = pruner.remove()
    same_bits(snapshot(task.model), before)
    assert masks.total - masks.left == round(sparsity * 36) + round(sparsity * 108)


@given(st.integers(1, 40), st.floats(0.05, 0.9), st.integers(0, 2**31))
def test_removal_after_the_default_fade_is_free_for_any_target(steps, sparsity, seed):
    torch.manual_seed(seed)
    layer = torch.nn.Linear(7, 5)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    pruner = SelectiveWeightDecay(layer, optimizer, sparsity=sparsity, steps=steps)
    for _ in range(steps):
        optimizer.zero_grad()
        (layer(torch.randn(3, 7)) - 1).square().sum().backward()
        optimizer.step()
    before = layer.weight.detach().clone()
    assert pruner.remove().left == 35 - round(sparsity * 35)
    assert torch.equal(layer.weight, before)


def test_removal_zeroes_the_target_exactly_and_leaves_every_other_bit(prune, train, snapshot, hooks_on):
    task, optimizer, pruner = prune("conv", "sgd", sparsity=0.7, steps=50, fade=Decay(PAPER))
    train(task, optimizer, 20)
    before, planned = snapshot(task.model), pruner.masks()
    with pytest.warns(UserWarning, match=r"20 of 50.*30 steps early.*not complete"):
        masks = pruner.remove()
    assert masks.total - masks.left == round(0.7 * masks.total)
    for name, weight in task.model.named_parameters():
        stays = masks.get(name, torch.ones_like(weight, dtype=torch.bool))
        assert torch.equal(stays, planned.get(name, stays))
        assert torch.equal(weight[stays], before[name][stays])
        assert not weight[~stays].any()
        assert weight.requires_grad
    assert hooks_on(optimizer) == 0
    assert pruner.fade == 0.0


def test_after_removal_the_optimizer_is_alone_again(prune, train):
    task, optimizer, pruner = prune("mlp", "sgd", sparsity=0.5, steps=5, structure=Elements("layer"))
    train(task, optimizer, 5)
    masks = pruner.remove()
    train(task, optimizer, 6, start=5)
    weights = dict(task.model.named_parameters())
    assert all(weights[name][~mask].any() for name, mask in masks.items())
    assert pruner.progress == 1.0


def test_removal_may_be_asked_for_twice(prune, train, same_bits):
    task, optimizer, pruner = prune("mlp", "sgd", sparsity=0.5, steps=5, structure=Elements("layer"))
    train(task, optimizer, 5)
    same_bits(dict(pruner.remove()), dict(pruner.remove()))


def test_the_default_fade_stopped_early_says_so(prune, train):
    task, optimizer, pruner = prune("mlp", "sgd", sparsity=0.7, steps=100)
    train(task, optimizer, 10)
    with pytest.warns(UserWarning, match=r"10 of 100.*90 steps early"):
        pruner.remove()


def test_a_fade_too_weak_says_so_at_the_end(prune, train):
    task, optimizer, pruner = prune("mlp", "sgd", sparsity=0.7, steps=10, fade=Decay(0.1))
    train(task, optimizer, 10)
    with pytest.warns(UserWarning, match=r"not complete") as caught:
        pruner.remove()
    assert "early" not in str(caught[0].message)
    assert str(caught[0].message).endswith("or fade earlier or more strongly")


def test_a_layer_that_removal_empties_is_named(still, push):
    model, optimizer, pruner = still(sparsity=0.5, steps=1, small=[[0.1, 0.2]], large=[[1.0, 2.0]])
    push(model, optimizer)
    with pytest.warns(UserWarning, match=r"no weight is left in small"):
        pruner.remove()


def test_masks_change_nothing(prune, train, same_bits):
    ends = []
    for look in (False, True):
        task, optimizer, pruner = prune("mlp", "sgd", sparsity=0.7, steps=10)
        train(task, optimizer, 10, after=lambda step, p=pruner, look=look: look and (p.masks(), p.fade))
        ends.append(task.model)
    same_bits(*ends)


# Beyond the end ---------------------------------------------------------------------------------------


def test_steps_beyond_the_end_hold_the_final_strength_and_warn_once(still, push):
    """Strength 0, 1, then 2 for ever: halves, thirds and thirds."""
    fade = Decay(schedules.linear(0.0, 2.0), weight_decay=1.0, mode="implicit")
    model, optimizer, pruner = still(fade, steps=2, w=torch.tensor([[72.0, 999.0]]).double())
    push(model, optimizer)
    push(model, optimizer)
    assert model.w[0, 0].item() == pytest.approx(36.0)
    with pytest.warns(UserWarning, match=r"more steps.*steps=2"):
        push(model, optimizer)
    push(model, optimizer)  # a second warning would be an error here
    assert model.w[0, 0].item() == pytest.approx(4.0)
    assert pruner.progress == 1.0


def test_the_default_fade_goes_on_beyond_its_end(prune, train, snapshot, same_bits):
    task, optimizer, pruner = prune("mlp", "sgd", sparsity=0.7, steps=10, structure=Elements("layer"))
    train(task, optimizer, 10)
    with pytest.warns(UserWarning, match="more steps"):
        train(task, optimizer, 20, start=10)
    before = snapshot(task.model)
    pruner.remove()
    same_bits(snapshot(task.model), before)


# Recovery ---------------------------------------------------------------------------------------------


def test_a_weight_that_grows_out_of_the_target_recovers(bare, push):
    """What is targeted is decided anew at every step: 1 fades until its gradient lifts it above 2."""
    model = bare(w=[[1.0, 2.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=9, fade=implicit(0.5))
    push(model, optimizer)
    assert model.w.flatten().tolist() == pytest.approx([0.5, 2.0])
    push(model, optimizer, w=[[-3.0, 0.0]])
    assert model.w.flatten().tolist() == pytest.approx([3.5, 1.0])
    push(model, optimizer)
    assert model.w.flatten().tolist() == pytest.approx([3.5, 0.5])
