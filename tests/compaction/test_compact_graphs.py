"""Random networks with random channels zeroed: the compact one gives the same, and has no more to lose."""

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.helpers import gathers, outputs, same_outputs, shapes
from support.random_networks import cases, tokens, zero
from torch import Tensor, nn

import fadeout
from fadeout.compaction.plan import plans_of
from fadeout.graph.analysis import analyse
from fadeout.graph.trace import trace

# what stays although it is zero is what is tested here: the warning has tests of its own
pytestmark = pytest.mark.filterwarnings("ignore:compact.. keeps")

SLOW_TO_DRAW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def input_gradients(model, inputs):
    """The gradient of a number made of all outputs."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    mixed = sum(
        (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum() for y in outputs(model, tuple(leaves))
    )
    found = torch.autograd.grad(mixed, leaves, allow_unused=True) if mixed.requires_grad else [None, None]
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


def width(module):
    """How many channels come out of a layer, by what it says of itself and by its parameters."""
    names = ("out_features", "out_channels", "num_features", "num_channels", "num_heads")
    said = next((getattr(module, name) for name in names if hasattr(module, name)), None)
    transposed = isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d)
    if isinstance(getattr(module, "weight", None), Tensor) and said is not None:
        assert said == (module.weight.shape[1] * module.groups if transposed else len(module.weight))
    return said


def check_gone(model, small, inputs):
    """Every channel that the rules call dead is gone."""
    analysis = analyse(trace(model, inputs))
    for node, flow in analysis.flows.items():
        if node.op == "call_module" and width(analysis.network.module(node)) is not None:
            inner = small.get_submodule(str(node.target)).modules()  # perhaps between Gathers
            assert next(filter(None, map(width, inner))) == int(flow.needed.sum()), node


def check_carried(small, carried):
    """The state, which was a copy of the parameters, still is, except of biases that took up constants."""
    held = [parameter for group in carried.param_groups for parameter in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in small.parameters()}
    born = [name for plan in plans_of(small) for name in plan.biases]
    for name, parameter in small.named_parameters():
        state = carried.state.get(parameter)
        new = name.endswith("bias") and any(name.startswith(f"{one}.") for one in born)
        assert (state is None) == new, name
        if state is not None and not name.endswith("bias"):
            assert torch.equal(state["momentum_buffer"], parameter), name


KINDS = {"1d": cases(1), "2d": cases(2), "3d": cases(3), "tokens": cases(2, tokens)}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, suppress_health_check=SLOW_TO_DRAW)
@given(data=st.data())
def test_the_compact_network_gives_the_same(kind, data):
    check_compact(kind, data)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, suppress_health_check=SLOW_TO_DRAW)
@given(data=st.data())
def test_many_compact_networks_give_the_same(kind, data):
    check_compact(kind, data)


def check_compact(kind, data):
    case = data.draw(KINDS[kind])
    model, inputs = case.model, case.inputs
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = parameter.detach().clone()
    small, carried = fadeout.compact(model, inputs, optimizer=optimizer)
    check_carried(small, carried)
    torch.testing.assert_close(before, model.state_dict(), rtol=0, atol=0)
    assert modes == [module.training for module in model.modules()]
    assert not any(plan.keep_forward for plan in plans_of(small))  # it did not have to step back
    check_gone(model, small, inputs)
    same_outputs(model, small, inputs)
    for mine, theirs in zip(input_gradients(model, inputs), input_gradients(small, inputs), strict=True):
        near = 1e-7 * max(float(mine.abs().max()), 1)  # norms of nearly equal features blow rounding up
        torch.testing.assert_close(mine, theirs, rtol=0, atol=near)
    again = fadeout.compact(small, inputs)
    assert shapes(again) == shapes(small)
    if not case.drops:
        same_outputs(model, small, inputs, training=True)
        same_outputs(model, small, inputs)  # the running statistics have moved alike


@settings(max_examples=6, suppress_health_check=SLOW_TO_DRAW)
@given(case=KINDS["2d"])
def test_more_channels_die_later(case):
    check_more(case)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, suppress_health_check=SLOW_TO_DRAW)
@given(data=st.data())
def test_more_channels_die_later_in_many(kind, data):
    check_more(data.draw(KINDS[kind]))


def check_more(case):
    small = fadeout.compact(case.model, case.inputs)
    for module in small.modules():
        zero(module)
    smaller = fadeout.compact(small, case.inputs)
    assert not any(plan.keep_forward for plan in plans_of(smaller))
    check_gone(small, smaller, case.inputs)
    same_outputs(small, smaller, case.inputs)
    assert shapes(fadeout.compact(smaller, case.inputs)) == shapes(smaller)


@settings(max_examples=6, suppress_health_check=SLOW_TO_DRAW)
@given(case=cases(2))
def test_coupled_networks_gather_nothing(case):
    check_coupled(case)


@pytest.mark.slow
@settings(max_examples=20, suppress_health_check=SLOW_TO_DRAW)
@given(case=cases(2))
def test_many_coupled_networks_gather_nothing(case):
    check_coupled(case)


def check_coupled(case):
    small = fadeout.compact(case.model, case.inputs, couple=True)
    same_outputs(case.model, small, case.inputs)
    assert not gathers(small)
    assert shapes(fadeout.compact(small, case.inputs, couple=True)) == shapes(small)


@settings(max_examples=6, suppress_health_check=SLOW_TO_DRAW)
@given(case=cases(1))
def test_networks_for_inference(case):
    check_for_inference(case)


@pytest.mark.slow
@settings(max_examples=20, suppress_health_check=SLOW_TO_DRAW)
@given(case=cases(1))
def test_many_networks_for_inference(case):
    check_for_inference(case)


def check_for_inference(case):
    small = fadeout.compact(case.model, case.inputs, for_inference=True)
    same_outputs(case.model, small, case.inputs)
    assert shapes(fadeout.compact(small, case.inputs, for_inference=True)) == shapes(small)
