"""What pruners with a target share: removal from the model that they were built for, states, schedules."""

import copy

import numpy as np
import pytest
import torch
from support.pruned import build, network, step
from torch import nn

import fadeout
from fadeout.methods import GradualMagnitudePruning, iterative


def test_parameters_replaced_in_the_middle_are_noticed_at_removal():
    model = network()
    pruner, optimizer = build(model)
    for _ in range(5):
        step(model, optimizer)
    model[2] = nn.Linear(100, 5)
    optimizer.add_param_group({"params": list(model[2].parameters())})
    for _ in range(5):
        step(model, optimizer)
    with pytest.raises(ValueError, match=r"2\.weight of the model was replaced"):
        pruner.remove()


def test_hold_wants_the_optimizer_that_trains():
    model = network()
    masks = fadeout.methods.one_shot(model, 0.5)
    others = [torch.optim.SGD(network().parameters(), lr=0.1)]
    for optimizer, words in (
        (others, "does not hold 0.weight"),
        ([], "optimizer is a torch.optim.Optimizer"),
    ):
        with pytest.raises(ValueError, match=words):
            masks.hold(model, optimizer)


def test_fine_tuning_with_another_optimizer_is_noticed():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fine_tune(number):
        step(model, torch.optim.SGD(model.parameters(), lr=0.1))

    with pytest.raises(ValueError, match="must step the optimizer that iterative"):
        iterative(model, optimizer, fine_tune, sparsity=0.5)


BAD = [
    ("scores", {"0.weight": torch.zeros(3), "2.weight": torch.zeros(5, 100)}),
    ("pending", {"0.weight": "much"}),
    ("version", "first"),
    ("shapes", None),
    ("step", "late"),
    ("step", -1),
    ("latents", {"0.weight": torch.zeros(2, 2)}),
    ("latents", {"0.weight": torch.zeros(100, 10)}),  # and none of the others
    ("latents", {}),
    ("held", {"0.weight": torch.zeros(1, dtype=torch.bool)}),
]


@pytest.mark.parametrize(("part", "value"), BAD)
def test_a_state_with_a_bad_part_changes_nothing(part, value):
    method = GradualMagnitudePruning if part == "held" else fadeout.SelectiveWeightDecay
    extra = {"fade": fadeout.Latent()} if part == "latents" else {}
    model = network()
    pruner, optimizer = build(model, method, criterion=fadeout.criteria.taylor, **extra)
    for _ in range(3):
        step(model, optimizer)
    good = copy.deepcopy(pruner.state_dict())
    with pytest.raises(ValueError, match=r"the state |no state as|'much'"):
        pruner.load_state_dict({**good, "step": 7, part: value})
    after = pruner.state_dict()
    assert after["step"] == good["step"] == 3
    for name in good:
        if isinstance(good[name], dict) and name not in ("shapes", "made_of", "pending"):
            assert all(torch.equal(good[name][key], after[name][key]) for key in good[name])


def test_a_state_of_another_fade_is_refused():
    model = network()
    state = build(copy.deepcopy(model), fade=fadeout.Progressive())[0].state_dict()
    with pytest.raises(ValueError, match=r"another fade.*the default was fadeout\.Progressive"):
        build(model)[0].load_state_dict(state)
    state = build(copy.deepcopy(model))[0].state_dict()
    with pytest.raises(ValueError, match=r"another fade: it has latent weights.*Progressive\(\)"):
        build(copy.deepcopy(model), fade=fadeout.Progressive())[0].load_state_dict(state)


@pytest.mark.parametrize("number", [float, np.float64, np.float32, torch.tensor])
@pytest.mark.parametrize("fade", [fadeout.Latent(), None], ids=["latent", "decay"])
def test_schedules_may_compute_with_numbers_of_others(tmp_path, number, fade):
    def grow(progress):
        return number(min(progress, 0.5))

    model = network().bfloat16()  # in which small doses wait, as a part of the state
    fade = fade or fadeout.Decay(lambda progress: number(0.5), weight_decay=0.5, mode="implicit")
    pruner, optimizer = build(model, sparsity=grow, fade=fade)
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.randn(8, 10, dtype=torch.bfloat16)).square().mean().backward()
        optimizer.step()
    torch.save(pruner.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert state["sparsity"] == 0.5
    assert fade.latent or any(state["pending"].values())
    pruner.load_state_dict(state)
    assert pruner.masks().sparsity == 0.5


@pytest.mark.parametrize("fade", [fadeout.Latent(), fadeout.Progressive()])
def test_a_state_that_is_loaded_after_removal_goes_on(fade):
    torch.manual_seed(0)
    model = network()
    pruner, optimizer = build(model, fade=fade)
    for _ in range(5):
        step(model, optimizer)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), pruner.state_dict()])
    ends = []
    for _ in range(2):
        torch.manual_seed(1)
        for _ in range(5):
            step(model, optimizer)
        pruner.remove()
        assert pruner.steps_taken == 10
        ends.append(copy.deepcopy(model.state_dict()))
        for part, state in zip((model, optimizer, pruner), copy.deepcopy(saved), strict=True):
            part.load_state_dict(state)
        assert "detached" not in repr(pruner)
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_state_is_not_loaded_after_removal_where_another_prunes_by_now():
    model = network()
    pruner, optimizer = build(model, fade=fadeout.Progressive())
    state = pruner.state_dict()
    step(model, optimizer)
    with pytest.warns(UserWarning, match="not complete"):
        pruner.remove()
    other, _ = build(model)
    with pytest.raises(ValueError, match="already pruned"):
        pruner.load_state_dict(state)
    assert (pruner.steps_taken, other.steps_taken) == (1, 0)
