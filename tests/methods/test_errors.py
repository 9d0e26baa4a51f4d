"""What bad input gets: a ValueError that helps, before anything is changed."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_flatten

import fadeout
from fadeout import Decay, Elements, Progressive, SelectiveWeightDecay, criteria, schedules
from fadeout.methods import GradualMagnitudePruning

PRUNERS = pytest.mark.parametrize("method", [SelectiveWeightDecay, GradualMagnitudePruning])
DECAY = {mode: Decay(1.0, weight_decay=1.0, mode=mode) for mode in ("gradient", "implicit")}


def same(one, other) -> bool:
    """Whether two states are equal, tensors bit for bit."""
    (mine, shape), (theirs, their_shape) = tree_flatten(one), tree_flatten(other)
    pairs = zip(mine, theirs, strict=True)
    return shape == their_shape and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs
    )


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


@pytest.fixture
def refuses(snapshot, same_bits, hooks_on):
    """Assert that a pruner is refused with these words, and that it left model and optimizer alone."""

    def check(words, model, optimizer=None, method=SelectiveWeightDecay, **arguments):
        if optimizer is None:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = snapshot(model)
        with pytest.raises(ValueError, match=words):
            method(model, optimizer, **{"sparsity": 0.5, "steps": 10, **arguments})
        same_bits(snapshot(model), before)
        for each in optimizer if isinstance(optimizer, list) else [optimizer]:
            assert not isinstance(each, torch.optim.Optimizer) or hooks_on(each) == 0

    return check


# Arguments --------------------------------------------------------------------------------------------


@PRUNERS
@pytest.mark.parametrize(
    ("sparsity", "words"),
    [
        (90, r"90.*[Dd]id you mean 0\.9\?"),
        (99.5, r"99\.5.*[Dd]id you mean 0\.995\?"),
        (1.0, r"between 0 and 1.*1\.0"),
        (1, r"between 0 and 1.*1"),
        (0, r"between 0 and 1.*0.*NoPruning"),
        (0.0, r"between 0 and 1.*0.*NoPruning"),
        (-0.5, r"between 0 and 1.*-0\.5"),
        (150, r"between 0 and 1.*150"),
        (math.nan, r"between 0 and 1.*nan"),
        (math.inf, r"between 0 and 1.*inf"),
        (None, r"between 0 and 1.*None"),
        ("most", r"between 0 and 1.*most"),
        (True, r"between 0 and 1.*True"),
        (schedules.linear(0.0, 1.0), r"schedule.*1\.0.*progress 1"),
        (schedules.linear(0.5, 0.0), r"schedule.*0\.0.*progress 1"),
        (lambda progress: 90.0, r"schedule.*90"),
        (lambda progress: math.nan, r"schedule.*nan"),
    ],
)
def test_sparsity(refuses, model, method, sparsity, words):
    refuses(words, model, method=method, sparsity=sparsity)


@PRUNERS
@pytest.mark.parametrize("steps", [0, -3, 0.5, 2.5, math.nan, math.inf, None, "ten", True])
def test_steps(refuses, model, method, steps):
    refuses(rf"steps.*{steps}", model, method=method, steps=steps)


def test_arguments_after_the_optimizer_go_by_keyword(model):
    with pytest.raises(TypeError):
        SelectiveWeightDecay(model, torch.optim.SGD(model.parameters(), lr=0.1), 0.9, 100)


@PRUNERS
def test_sparsity_and_steps_have_no_default(model, method):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="steps"):
        method(model, optimizer, sparsity=0.9)
    with pytest.raises(ValueError, match=r"sparsity is a fraction .* got None"):
        method(model, optimizer, steps=100)


@PRUNERS
def test_a_model_with_nothing_prunable(refuses, method):
    refuses(r"nothing to prune.*two or more dimensions.*prunable=", nn.BatchNorm1d(4), method=method)


@PRUNERS
def test_a_model_that_is_frozen(refuses, model, method):
    refuses("nothing to prune", model.requires_grad_(False), method=method)


@PRUNERS
def test_a_choice_that_chooses_nothing(refuses, model, method):
    refuses("nothing to prune", model, method=method, prunable=lambda name, parameter: False)
    refuses("nothing to prune", model, method=method, prunable=[])


@PRUNERS
@pytest.mark.parametrize("several", [False, True])
def test_an_optimizer_of_another_model(refuses, model, method, several):
    other = torch.optim.SGD(nn.Linear(4, 4).parameters(), lr=0.1)
    words = r"optimizer holds none.*model\.parameters\(\)"
    refuses(words, model, [other, other] if several else other, method=method)


def test_an_averaged_copy_is_not_what_the_optimizer_trains(refuses, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    refuses("optimizer holds none", torch.optim.swa_utils.AveragedModel(model), optimizer)


@pytest.mark.parametrize("optimizer", [None, [], "sgd", nn.Linear(2, 2), [None]])
def test_what_is_no_optimizer(model, optimizer):
    with pytest.raises(ValueError, match=r"optimizer is a torch.optim.Optimizer, or a list"):
        SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=10)


@pytest.mark.parametrize("mode", ["gradient", "implicit"])
def test_a_decay_of_zero_in_both_optimizer_and_argument(refuses, model, mode):
    """The error names the group, by its number and by a parameter in it."""
    optimizer = torch.optim.AdamW(
        [
            {"params": [*model[0].parameters(), *model[1].parameters()], "weight_decay": 0.1},
            {"params": model[2].parameters(), "weight_decay": 0.0},
        ]
    )
    words = r"parameter group 1.*'2\.weight'.*weight_decay=0\.0.*Decay\(\.\.\., weight_decay="
    refuses(words, model, optimizer, fade=Decay(1.0, mode=mode))
    SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=10, fade=DECAY[mode])  # this will do


def test_a_decay_of_zero_in_a_group_without_prunable_weights_is_fine(model):
    """The usual recipe: decay for matrices, none for biases and norms."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.SGD(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=0.1
    )
    pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=10, fade=Decay(1.0))
    assert list(pruner.masks()) == ["0.weight", "2.weight"]


def test_an_optimizer_without_any_decay(refuses, model):
    refuses(r"weight_decay", model, torch.optim.Rprop(model.parameters()), fade=Decay(1.0))


@pytest.mark.parametrize("fade", ["auto", Decay, 3.0])
def test_what_is_no_fade(refuses, model, fade):
    refuses(r"fade is fadeout\.Latent\(\), fadeout\.Progressive\(\) or fadeout\.Decay", model, fade=fade)


@PRUNERS
def test_what_is_no_criterion(refuses, model, method):
    refuses(r"criterion is a callable.*'magnitude'", model, method=method, criterion="magnitude")


# Criteria that fail -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("criterion", "words"),
    [
        (lambda weight, gradient: weight.abs().sum(1), r"shape \(4,\).*'0\.weight'.*\(4, 4\)"),
        (lambda weight, gradient: weight / 0 * 0, r"NaN.*'0\.weight'.*step 0"),
    ],
    ids=["shape", "NaN"],
)
def test_a_criterion_that_fails_changes_nothing(model, snapshot, same_bits, criterion, words):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=10, criterion=criterion)
    before = snapshot(model)
    with pytest.raises(ValueError, match=words):
        optimizer.step()
    same_bits(snapshot(model), before)


# Weights that diverge ---------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fade", ["progressive", "gradient", "implicit", "gmp"])
def test_nan_names_parameter_and_step_before_any_weight_is_touched(bare, push, snapshot, fade, dtype, value):
    """The broken parameter comes last, so that whatever goes one by one would have touched the first."""
    model = bare(first=torch.arange(1.0, 9.0, dtype=dtype).view(2, 4), last=torch.ones(2, 2, dtype=dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    arguments = {"sparsity": 0.5, "steps": 3}
    if fade == "gmp":
        pruner = GradualMagnitudePruning(model, optimizer, **arguments)
    else:
        pruner = SelectiveWeightDecay(model, optimizer, **arguments, fade=DECAY.get(fade, Progressive()))
    push(model, optimizer)
    with torch.no_grad():
        model.last[1, 1] = value
    before, state = snapshot(model), pruner.state_dict()
    for _ in range(2):  # again: the error does not go away by itself
        with pytest.raises(ValueError, match=r"'last'.*NaN or infinite.*step 1"):
            push(model, optimizer)
        assert torch.equal(model.first, before["first"])
        assert torch.equal(model.last.isfinite(), before["last"].isfinite())
    assert pruner.state_dict()["step"] == state["step"] == 1


@pytest.mark.parametrize("criterion", [criteria.taylor, criteria.lamp, criteria.gradient_magnitude])
def test_nan_is_named_with_every_criterion(bare, push, criterion):
    model = bare(first=[[1.0, 2.0]], last=[[3.0, math.nan]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=1, criterion=criterion)
    with pytest.raises(ValueError, match=r"'last'.*step 0"):
        push(model, optimizer, first=[[1.0, 1.0]], last=[[1.0, 1.0]])
    assert model.first.tolist() == [[1.0, 2.0]]


def test_nan_that_the_step_itself_makes_is_found_after_it(bare, push):
    model = bare(w=[[1.0, 2.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=1)
    with pytest.raises(ValueError, match=r"'w'.*step 0"):
        push(model, optimizer, w=[[0.0, math.nan]])
    assert model.w[0, 0].item() == 1.0  # with steps=1 it would have been zeroed


def test_nan_at_removal(bare):
    model = bare(w=[[1.0, math.nan]])
    pruner = SelectiveWeightDecay(model, torch.optim.SGD(model.parameters(), lr=0.0), sparsity=0.5, steps=1)
    with pytest.raises(ValueError, match=r"'w'.*removal"):
        pruner.remove()
    assert model.w[0, 0].item() == 1.0


def test_weights_that_are_not_pruned_may_be_what_they_like(bare, push):
    """Running statistics and masks for attention are often infinite on purpose."""
    model = bare(w=[[1.0, 2.0]], bias=[math.inf])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=1)
    push(model, optimizer)
    assert pruner.remove()["w"].tolist() == [[False, True]]


# States -----------------------------------------------------------------------------------------------


def build(model, method=SelectiveWeightDecay, optimizer=None, **arguments):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    return method(model, optimizer, **{"sparsity": 0.5, "steps": 10, **arguments})


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (nn.Linear(4, 5), r"another model.*weight"),
        (nn.Sequential(nn.Linear(4, 4), nn.Identity(), nn.Linear(4, 3)), r"another model.*'2\.weight'"),
        (nn.Sequential(nn.Linear(4, 4)), r"another model.*'2\.weight'"),
    ],
    ids=["names", "shape", "fewer"],
)
@PRUNERS
def test_a_state_from_another_model(model, method, other, words):
    pruner = build(model, method)
    before = pruner.state_dict()
    with pytest.raises(ValueError, match=words):
        pruner.load_state_dict(build(copy.deepcopy(other), method).state_dict())
    assert same(pruner.state_dict(), before)


@pytest.mark.parametrize(
    "state",
    [None, {}, [], {"step": 3}, {"state": {}, "param_groups": []}],
    ids=["None", "empty", "list", "part", "optimizer's"],
)
def test_what_is_no_state(model, state):
    with pytest.raises(ValueError, match=r"state_dict\(\)"):
        build(model).load_state_dict(state)


@PRUNERS
def test_a_state_with_a_part_missing(model, method):
    pruner = build(model, method)
    before, state = pruner.state_dict(), {**pruner.state_dict(), "step": 7}
    for key in state.keys() - {"structure", "made_of"}:  # which states of version 0.1 have not
        with pytest.raises(ValueError, match="state"):
            pruner.load_state_dict({name: value for name, value in state.items() if name != key})
        assert same(pruner.state_dict(), before)


def test_a_state_of_another_method(model):
    for mine, theirs in (
        (SelectiveWeightDecay, GradualMagnitudePruning),
        (GradualMagnitudePruning, SelectiveWeightDecay),
    ):
        pruner = build(model, mine)
        before = pruner.state_dict()
        with pytest.raises(ValueError, match="state"):
            pruner.load_state_dict({**build(copy.deepcopy(model), theirs).state_dict(), "step": 7})
        assert same(pruner.state_dict(), before)
        pruner.detach()


@pytest.mark.parametrize(
    ("arguments", "words"), [({"steps": 20}, r"steps=20.*steps=10"), ({"sparsity": 0.75}, r"sparsity=0\.75")]
)
def test_a_state_of_other_arguments(model, arguments, words):
    with pytest.raises(ValueError, match=words):
        build(model).load_state_dict(build(copy.deepcopy(model), **arguments).state_dict())


class Distinct:
    def __call__(self, weight, gradient):
        return weight.abs()


@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        ({"criterion": criteria.magnitude}, {"criterion": criteria.lamp}, "=lamp.*criterion=magnitude"),
        ({"criterion": Distinct()}, {"criterion": criteria.taylor}, "=taylor.*criterion=Distinct"),
        ({}, {"structure": fadeout.Elements("layer")}, r"='layer'\).*structure=Elements\(scope='network'\)"),
        ({"structure": fadeout.NM(2, 4)}, {"structure": fadeout.NM(1, 2)}, r"NM\(n=1, m=2\).*n=2"),
    ],
    ids=["criterion", "own criterion", "scope", "structure"],
)
def test_a_state_of_another_choice(model, mine, theirs, words):
    pruner = build(model, fade=fadeout.Latent(), **mine)
    before = pruner.state_dict()
    state = {**build(copy.deepcopy(model), fade=fadeout.Latent(), **theirs).state_dict(), "step": 7}
    with pytest.raises(ValueError, match=words):
        pruner.load_state_dict(state)
    assert same(pruner.state_dict(), before)


def test_a_state_of_the_same_choice(model):
    """Another object of the same kind, or another way to compute the same, is no other choice."""
    one, other = copy.deepcopy(model), model
    state = build(one, criterion=Distinct(), structure=fadeout.Elements(compile=False)).state_dict()
    build(other, criterion=Distinct()).load_state_dict({**state, "step": 7})


def test_a_state_from_the_future(model):
    pruner = build(model)
    with pytest.raises(ValueError, match="version 99"):
        pruner.load_state_dict({**pruner.state_dict(), "version": 99})


# Attaching --------------------------------------------------------------------------------------------


def test_attach_refuses_another_models_optimizer_and_stays_where_it_is(model, hooks_on):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    pruner = build(model, optimizer=optimizer)
    other = torch.optim.SGD(nn.Linear(4, 4).parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"does not hold 0\.weight"):
        pruner.attach(other)
    assert hooks_on(other) == 0
    optimizer.step()
    assert pruner.progress == 0.1


def test_attach_refuses_a_decay_of_zero_and_stays_where_it_is(model, hooks_on):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, weight_decay=0.1)
    pruner = build(model, optimizer=optimizer, fade=Decay(1.0))
    other = torch.optim.SGD(model.parameters(), lr=0.0)
    with pytest.raises(ValueError, match=r"weight_decay"):
        pruner.attach(other)
    assert hooks_on(other) == 0
    optimizer.step()
    assert pruner.progress == 0.1


# Methods without hooks --------------------------------------------------------------------------------


@pytest.mark.parametrize("sparsity", [90, 1.0, 0.0, -1, math.nan])
def test_sparsity_of_the_plain_methods(model, snapshot, same_bits, hooks_on, sparsity):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = snapshot(model)
    with pytest.raises(ValueError, match=r"between 0 and 1"):
        fadeout.methods.one_shot(model, sparsity)
    with pytest.raises(ValueError, match=r"between 0 and 1"):
        fadeout.methods.iterative(model, optimizer, lambda number: None, sparsity=sparsity)
    same_bits(snapshot(model), before)
    assert hooks_on(optimizer) == 0


@pytest.mark.parametrize("rounds", [0, -1, 1.5])
def test_rounds_of_iterative_pruning(model, snapshot, same_bits, rounds):
    optimizer, before = torch.optim.SGD(model.parameters(), lr=0.1), snapshot(model)
    with pytest.raises(ValueError, match=r"rounds"):
        fadeout.methods.iterative(model, optimizer, lambda number: None, sparsity=0.5, rounds=rounds)
    same_bits(snapshot(model), before)


@pytest.mark.parametrize("scope", ["layers", None])
def test_scope(scope):
    with pytest.raises(ValueError, match=r"'network', 'layer'"):
        Elements(scope=scope)
