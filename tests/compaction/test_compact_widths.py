"""A forward that computes with numbers of channels: the compact network goes on with what they were."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.helpers import Net, kill
from torch import Tensor, fx, nn

import fadeout
from fadeout.compaction.compact import apply_plan
from fadeout.compaction.plan import plans_of
from fadeout.methods.magnitude import one_shot

X = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))

NUMBERS = {
    "a root": lambda m, h: math.sqrt(h.shape[-1]),
    "a power": lambda m, h: h.shape[-1] ** 0.5,
    "a float": lambda m, h: float(h.shape[-1]),
    "a quotient": lambda m, h: 1 / h.shape[-1],
    "numpy's root": lambda m, h: np.sqrt(h.shape[-1]),
    "numpy's single precision": lambda m, h: np.float32(h.shape[-1]),
    "an integer": lambda m, h: int(h.shape[-1]),
    "a rounded number": lambda m, h: round(h.shape[-1]),
    "a stride": lambda m, h: h.stride(0),
    "a layer's attribute": lambda m, h: m.a.out_features**-0.5,
    "a shape of weights": lambda m, h: m.a.weight.shape[0],
    "a question": lambda m, h: 2 if h.shape[-1] > 15 else 1,
}


def network(function, bias: float = 0.0) -> Net:
    """Of 16 hidden channels six are dead; the function makes of them what they are multiplied with."""

    def forward(m, x):
        h = F.relu(m.a(x))
        return m.b(h * function(m, h))

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Net(forward, a=nn.Linear(6, 16, bias=False), b=nn.Linear(16, 3))
    nn.init.constant_(model.b.bias, bias)
    kill(model.a, channels=range(6))
    return model


def check_same(model: nn.Module, small: nn.Module) -> None:
    bare = (one(X) - one.b.bias for one in (model, small))  # what a large bias would hide
    torch.testing.assert_close(*bare, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bias", [0.0, 20.0])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_is_made_of_a_width_stays_what_it_was(name, bias):
    model = network(NUMBERS[name], bias)
    small = fadeout.compact(model, torch.zeros(1, 6))
    assert small.a.out_features == 10
    assert isinstance(small, fx.GraphModule)
    check_same(model, small)


@pytest.mark.parametrize("function", [min, max])
def test_a_width_that_is_itself_a_factor_does_not_change(function):
    model = network(lambda m, h: function(h.shape[-1], h.shape[-1]))
    with pytest.warns(
        UserWarning, match="6 of 'a' stay, because the forward computes with how many there are"
    ):
        small = fadeout.compact(model, torch.zeros(1, 6))
    assert small.a.out_features == 16
    check_same(model, small)


def test_another_network_is_cut_alike():
    small = fadeout.compact(network(NUMBERS["a root"]), X)
    (plan,) = plans_of(small)
    assert plan.as_data()["rewrite"]
    again = apply_plan(network(NUMBERS["a root"]), plan)
    again.load_state_dict(small.state_dict())
    assert torch.equal(again(X), small(X))


class Sure(nn.Module):
    """Makes sure of its width."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.width = nn.Linear(6, 16), nn.Linear(16, 3), 16

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x))
        assert x.shape[-1] == self.width
        return self.b(x)


def test_a_forward_that_makes_sure_of_its_width_is_rewritten():
    model = Sure()
    one_shot(model, 0.5, structure=fadeout.Channels(X, by="norm"))
    small = fadeout.compact(model, X)
    assert isinstance(small, fx.GraphModule)
    assert small.a.out_features < 16
    check_same(model, small)


def test_a_network_that_loses_nothing_keeps_its_forward():
    """It counts its calls, so that no copy agrees with it: a graph would stop to count."""

    class Counts(Sure):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            type(self).calls += 1
            return super().forward(x) * type(self).calls

    with pytest.warns(UserWarning, match="returns it whole"):
        assert type(fadeout.compact(Counts(), X)) is Counts
