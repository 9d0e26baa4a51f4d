"""Random networks with random channels zeroed: the compact one gives the same, and has no more to lose."""

import copy

import pytest
import torch
from helpers import outputs, places, same_outputs, shapes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_networks import cases

import fadeout
from fadeout.compact import plans_of

SLOW_TO_DRAW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def input_gradients(model, inputs):
    """The gradient of a number made of all outputs."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    mixed = sum(
        (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum() for y in outputs(model, tuple(leaves))
    )
    found = torch.autograd.grad(mixed, leaves, allow_unused=True) if mixed.requires_grad else [None, None]
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


@pytest.mark.parametrize("rank", [1, 2, 3])
@settings(max_examples=80, suppress_health_check=SLOW_TO_DRAW)
@given(data=st.data())
def test_the_compact_network_gives_the_same(rank, data):
    case = data.draw(cases(rank))
    model, inputs = case.model, case.inputs
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    small = fadeout.compact(model, inputs)
    torch.testing.assert_close(before, model.state_dict(), rtol=0, atol=0)
    assert modes == [module.training for module in model.modules()]
    assert not any(plan.keep_forward for plan in plans_of(small))  # it did not have to step back
    same_outputs(model, small, inputs)
    for mine, theirs in zip(input_gradients(model, inputs), input_gradients(small, inputs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-8)
    again = fadeout.compact(small, inputs)
    assert shapes(again) == shapes(small)
    if not case.drops:
        same_outputs(model, small, inputs, training=True)
        same_outputs(model, small, inputs)  # the running statistics have moved alike


@settings(max_examples=30, suppress_health_check=SLOW_TO_DRAW)
@given(case=cases(2))
def test_coupled_networks_place_nothing(case):
    small = fadeout.compact(case.model, case.inputs, couple=True)
    same_outputs(case.model, small, case.inputs)
    assert not places(small)
    assert shapes(fadeout.compact(small, case.inputs, couple=True)) == shapes(small)


@settings(max_examples=30, suppress_health_check=SLOW_TO_DRAW)
@given(case=cases(1))
def test_networks_for_inference(case):
    small = fadeout.compact(case.model, case.inputs, for_inference=True)
    same_outputs(case.model, small, case.inputs)
    assert shapes(fadeout.compact(small, case.inputs, for_inference=True)) == shapes(small)
