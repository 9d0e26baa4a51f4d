"""Plans: plain data, kept with the module, by which another is cut alike."""

import copy
from dataclasses import asdict, replace

import pytest
import torch
from support.helpers import shapes
from support.small_networks import IMAGES, Chain, Residual, chain, residual

import fadeout
from fadeout.compaction.compact import apply_plan
from fadeout.compaction.plan import Plan, plans_of, set_plans


@pytest.mark.parametrize(("build", "whole"), [(chain, Chain), (residual, Residual)])
def test_a_plan_is_plain_data_and_cuts_another_network_alike(build, whole):
    small = fadeout.compact(build(), IMAGES)
    (plan,) = plans_of(small)
    again = apply_plan(whole().double(), Plan(**asdict(plan)))
    assert shapes(again) == shapes(small)
    again.load_state_dict(small.state_dict())
    assert torch.equal(again.eval()(IMAGES), small.eval()(IMAGES))
    assert plans_of(again) == plans_of(copy.deepcopy(again)) == [plan]


def test_networks_that_lose_nothing_have_no_plan():
    model = Chain().double()
    assert plans_of(model) == plans_of(fadeout.compact(model, IMAGES)) == []
    set_plans(model, ["plan"])
    assert plans_of(model) == ["plan"]


@pytest.mark.parametrize("kept", [{"nobody": [0]}, {"_0": [4]}, {"_0": []}])
def test_plans_for_other_networks(kept):
    (plan,) = plans_of(fadeout.compact(chain(), IMAGES))
    with pytest.raises(ValueError, match="the plan is for another architecture"):
        apply_plan(Chain().double(), replace(plan, kept=kept))


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": [{"shape": [1.5], "dtype": "float32"}]},
        {"inputs": [{"shape": [1], "dtype": "nn"}]},
        {"inputs": [{"shape": [1]}]},
        {"inputs": [{"dict": 3}]},
        {"inputs": None},
        {"kept": {"_0": ["a"]}},
        {"kept": [1]},
        {"constants": {"_0": 3}},
        {"biases": [3]},
        {"was": {"_0": None}},
        {"parameters": "many"},
        {"rewrite": 1},
    ],
)
def test_plans_that_somebody_made(changes):
    (plan,) = plans_of(fadeout.compact(chain(), IMAGES))
    with pytest.raises(ValueError, match="it is no plan"):
        replace(plan, **changes)


def test_an_example_that_would_take_gigabytes():
    (plan,) = plans_of(fadeout.compact(chain(), IMAGES))
    with pytest.raises(ValueError, match="the example has more than 268,435,456 values"):
        replace(plan, inputs=[{"shape": [2**20, 2**10], "dtype": "float32"}])
