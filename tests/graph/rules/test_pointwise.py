"""Activations, pooling, padding, arithmetic: what goes and what stays, worked out by hand."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.helpers import ALL, FEATURES, Net, check, conv, gathers, kill, size
from torch import Tensor, nn

import fadeout
from fadeout.torch_bridge.parameters import has_two_dimensions

# what stays although it is zero is what is tested here: the warning has tests of its own
pytestmark = pytest.mark.filterwarnings("ignore:compact.. keeps")


@pytest.mark.parametrize(
    "activation",
    [
        *(nn.ReLU(), nn.LeakyReLU(), nn.ELU(), nn.GELU(), nn.Softplus(), nn.Hardsigmoid(), nn.LogSigmoid()),
        *(torch.tanh, torch.exp, F.silu, torch.square, abs, Tensor.sigmoid),
    ],
    ids=lambda one: getattr(one, "__name__", type(one).__name__),
)
def test_activations(activation):
    step = activation if isinstance(activation, nn.Module) else Net(lambda m, x: _called(activation, x))
    model = nn.Sequential(nn.Linear(3, 4), step, nn.Linear(4, 2))
    kill(model[0], channels=[0, 3])
    small = check(model, {"0": [1, 2], "2": (ALL, [1, 2])}, FEATURES)
    at_zero = step(torch.zeros(1).double())
    torch.testing.assert_close(small[2].bias, model[2].bias + at_zero * model[2].weight[:, [0, 3]].sum(1))


def _called(function: Any, x: Tensor) -> Tensor:
    return x.sigmoid() if function is Tensor.sigmoid else function(x)


def test_slopes_of_their_own_go_with_their_channels():
    model = nn.Sequential(conv(3, 4), nn.PReLU(4), conv(4, 2), nn.PReLU(), conv(2, 2))
    kill(model[0], channels=[1])
    check(model, {"0": [0, 2, 3], "1": [0, 2, 3], "2": (ALL, [0, 2, 3])})


def test_slopes_that_are_used_twice_keep_what_either_use_needs():
    slopes = nn.PReLU(4)
    model = nn.Sequential(conv(3, 4), slopes, conv(4, 4), slopes, conv(4, 2))
    kill(model[0], channels=[1, 2])
    kill(model[2], channels=[2, 3])
    check(model, {"0": [0, 1, 3], "1": [0, 1, 3], "2": ([0, 1, 3], [0, 1, 3]), "4": (ALL, [0, 1, 3])})


def test_arithmetic_with_numbers():
    model = Net(lambda m, x: m.b(1 - m.a(x) * 2), a=nn.Linear(3, 4), b=nn.Linear(4, 2))
    kill(model.a, channels=[1])
    small = check(model, {"a": [0, 2, 3], "b": (ALL, [0, 2, 3])}, FEATURES)
    torch.testing.assert_close(small.b.bias, model.b.bias + model.b.weight[:, 1])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.softmax(x, 1),
        lambda x: x - x.mean(1, keepdim=True),
        lambda x: x.cumsum(1),
        lambda x: x.flip(1),
    ],
    ids=["softmax", "mean", "cumsum", "flip"],
)
def test_what_mixes_channels_keeps_all(function):
    model = Net(lambda m, x: m.b(function(m.a(x))), a=conv(3, 4), b=conv(4, 2))
    kill(model.a, channels=[0, 1])
    check(model, {})


@pytest.mark.parametrize(
    "step",
    [
        *(nn.MaxPool2d(3, 2, 1), nn.AdaptiveAvgPool2d(2), nn.AdaptiveMaxPool2d(2)),
        *(
            nn.Upsample(scale_factor=2),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Dropout(),
            nn.Identity(),
        ),
        *(nn.ReplicationPad2d(1), nn.ConstantPad2d(1, 0.5), nn.Dropout2d()),
        *(
            Net(lambda m, x, f=f: f(x))
            for f in (
                lambda x: F.interpolate(x, size=(3, 3)),
                lambda x: F.interpolate(x, size=x.shape[2:]),
                lambda x: F.pad(x, (1, 1, 1, 0), mode="replicate"),
                lambda x: x[:, :, ::2, 1:],
                lambda x: x[:, :, : x.size(2) // 2],
                lambda x: x.mean((2, 3), keepdim=True),
                lambda x: x.mean((-1, -2))[:, :, None, None],
                lambda x: torch.amax(x, dim=3, keepdim=True),
                lambda x: x.permute(0, 2, 3, 1).permute(0, 3, 1, 2),
                lambda x: x.flatten(2).unsqueeze(-1),
                lambda x: x.contiguous().view(x.size(0), x.size(1), -1, 1),
            )
        ),
    ],
)
def test_steps_that_leave_a_constant(step):
    """A channel of one half, out of a sigmoid, passes through, and is folded."""
    model = nn.Sequential(conv(3, 4), nn.Sigmoid(), step, conv(4, 2))
    kill(model[0], channels=[0, 2])
    small = check(model, {"0": [1, 3], "3": (ALL, [1, 3])})
    torch.testing.assert_close(small[3].bias, model[3].bias + 0.5 * model[3].weight[:, [0, 2]].sum((1, 2, 3)))


@pytest.mark.parametrize(
    "step",
    [
        *(nn.AvgPool2d(3, 2, 1), nn.ZeroPad2d(1), nn.LPPool2d(2, 2)),
        *(
            Net(lambda m, x, f=f: f(x))
            for f in (lambda x: F.pad(x, (1, 1)), lambda x: x.sum(3, keepdim=True))
        ),
    ],
)
def test_steps_that_leave_zero_alone(step):
    model = nn.Sequential(conv(3, 4), nn.Sigmoid(), step, conv(4, 2))
    kill(model[0], channels=[0, 2])
    check(model, {})
    model[1] = nn.ReLU()
    check(model, {"0": [1, 3], "3": (ALL, [1, 3])})


def shifted(reader: nn.Module) -> Net:
    """As in HGNetV2: a number that is trained is added to all channels."""
    model = Net(lambda m, x: m.b(m.scale * m.a(x).relu() + m.shift), a=conv(3, 4), b=reader)
    model.scale, model.shift = nn.Parameter(torch.tensor([2.0])), nn.Parameter(torch.tensor(0.5))
    return model


def test_a_number_that_is_trained_leaves_a_constant():
    model = shifted(conv(4, 2))
    kill(model.a, channels=[0, 2])
    small = check(model, {"a": [1, 3], "b": (ALL, [1, 3])})
    torch.testing.assert_close(small.b.bias, model.b.bias + 0.5 * model.b.weight[:, [0, 2]].sum((1, 2, 3)))
    model = shifted(conv(4, 2, 3, padding=1))  # where the constant shows at the border
    kill(model.a, channels=[0, 2])
    check(model, {})


@pytest.mark.parametrize("padding", [0, 1])
def test_channels_count_on_no_value_of_a_number_that_is_trained(padding):
    """It may be zero when they are bound, and is not when they are removed."""
    model = nn.Sequential(shifted(conv(4, 4, 2 * padding + 1, padding=padding)), nn.ReLU(), conv(4, 2))
    images = torch.randn(2, 3, 6, 6)
    model[0].shift.data.zero_()
    bound = fadeout.Channels(images, by="norm").bind(model, None, has_two_dimensions)
    assert [layer.name for layer in bound.layers] == (["0.b"] if padding else ["0.a", "0.b"])
    model[0].shift.data.fill_(0.5)
    alive = {layer.name: np.arange(4) % 2 == 0 for layer in bound.layers}
    for name in alive:
        kill(model.get_submodule(name), channels=[1, 3])
    assert bound.cost.left(alive) == size(fadeout.compact(model, images))


def test_padding_among_the_channels_moves_them():
    model = Net(lambda m, x: m.b(F.pad(m.a(x), (0, 0, 0, 0, 1, -1))), a=conv(3, 4), b=conv(4, 2))
    kill(model.a, channels=[1, 3])
    check(model, {})


def two_sides(function: Any = lambda m, x: m.c(m.a(x) + m.b(x))) -> Net:
    model = Net(function, a=conv(3, 4), b=conv(3, 4), c=conv(4, 2))
    kill(model.a, channels=[0, 3])
    kill(model.b, channels=[1, 3])
    return model


def test_the_sides_of_an_addition_keep_channels_of_their_own():
    small = check(two_sides(), {"a": [1, 2], "b": [0, 2], "c": (ALL, [0, 1, 2])})
    assert type(small) is Net  # the sides put their channels in place themselves
    first, second = (gather.index.tolist() for gather in gathers(small))
    assert (first, second) == ([2, 0, 1], [0, 2, 1])  # 2: a channel of zeros


def test_a_constant_side_is_filled_in():
    model = two_sides(lambda m, x: m.c(F.softplus(m.a(x)) - m.b(x)))
    small = check(model, {"a": [1, 2], "b": [0, 2], "c": (ALL, [0, 1, 2])})
    log2 = torch.tensor(2.0).double().log()
    assert len(gathers(small)) == 2
    assert gathers(small)[0].constant.tolist() == [log2, 0, 0]
    torch.testing.assert_close(small.c.bias, model.c.bias + log2 * model.c.weight[:, 3, 0, 0])


def test_coupled_sides_keep_the_same_channels():
    small = check(two_sides(), {"a": [0, 1, 2], "b": [0, 1, 2], "c": (ALL, [0, 1, 2])}, couple=True)
    assert not gathers(small)


def test_a_coupled_norm_keeps_the_channels_of_its_input():
    def forward(m, x):
        x = m.a(x)
        return m.b(m.norm(x)) + m.c(x)

    model = Net(forward, a=conv(3, 4), norm=nn.BatchNorm2d(4), b=conv(4, 2), c=conv(4, 2))
    kill(model.norm, channels=[0])
    small = check(model, {"norm": [1, 2, 3], "b": (ALL, [1, 2, 3])})
    assert len(gathers(small)) == 1
    assert not gathers(check(model, {}, couple=True))


def test_zero_times_anything_is_zero():
    model = two_sides(lambda m, x: m.c(m.a(x) * m.b(x)))
    check(model, {"a": [2], "b": [2], "c": (ALL, [2])})


def test_one_number_for_all_channels():
    model = Net(lambda m, x: m.c(m.a(x) * m.b(x)), a=conv(3, 4), b=conv(3, 1), c=conv(4, 2))
    kill(model.a, channels=[1])
    check(model, {"a": [0, 2, 3], "c": (ALL, [0, 2, 3])})


@pytest.mark.parametrize("function", [lambda a, b: torch.add(a, b, alpha=2), lambda a, b: a.abs() ** b.abs()])
def test_what_no_rule_covers_keeps_all(function):
    check(two_sides(lambda m, x: m.c(function(m.a(x), m.b(x)))), {})


def test_a_chain_of_additions():
    """A stream that three layers write to keeps what any of them writes."""

    def forward(m, x):
        x = m.s(x) + m.a(x)
        return m.c(x + m.b(F.relu(x)))

    model = Net(forward, s=conv(3, 4), a=conv(3, 4), b=conv(4, 4), c=conv(4, 2))
    kill(model.s, model.a, channels=[0, 1])
    kill(model.b, channels=[0, 2])
    check(model, {"s": [2, 3], "a": [2, 3], "b": ([1, 3], [2, 3]), "c": (ALL, [1, 2, 3])})


HIDDEN = torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(0)) < 0.5


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: torch.where(HIDDEN, m.a(x), 0.0),
        lambda m, x: torch.where(HIDDEN, 0, F.relu(m.a(x))),
        lambda m, x: m.a(x).where(HIDDEN, 0.0),
        lambda m, x: torch.where(HIDDEN, m.a(x), m.b(x)),
        lambda m, x: torch.where(x[:, :1] > 0, m.a(x), m.b(x)),
        lambda m, x: m.a(x).masked_fill(HIDDEN, 0.0),
        lambda m, x: F.relu(m.a(x)).masked_fill_(HIDDEN, 0),
        lambda m, x: m.a(x).masked_fill(value=0.0, mask=x[:, :1] > 0),
    ],
)
def test_where_and_masked_fill(function):
    """What is zero on both sides, or is replaced by zero, goes."""
    model = Net(lambda m, x: m.c(function(m, x)), a=conv(3, 4), b=conv(3, 4), c=conv(4, 2))
    kill(model.a, model.b, channels=[0, 3])
    both = "b" in function.__code__.co_names
    kept = {"a": [1, 2], "c": (ALL, [1, 2])}
    check(model, {**kept, "b": [1, 2]} if both else kept)


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: torch.where(HIDDEN, m.a(x), 1.0),
        lambda m, x: m.a(x).where(HIDDEN, 1.0),
        lambda m, x: torch.where(HIDDEN, m.a(x), m.b(x)),  # on the other side it is alive
        lambda m, x: m.a(x).masked_fill(HIDDEN, 1.0),
        lambda m, x: m.a(x).masked_fill(HIDDEN, -torch.inf).exp(),
        lambda m, x: m.a(x).masked_fill(m.a(x) > 0, 0.0),  # all channels are looked at
    ],
)
def test_where_and_masked_fill_with_something_else(function):
    """What is zero does not stay so: outputs are equal, and nothing goes."""
    model = Net(lambda m, x: m.c(function(m, x)), a=conv(3, 4), b=conv(3, 4), c=conv(4, 2))
    kill(model.a, channels=[0, 3])
    check(model, {})


def test_channels_that_nobody_reads_behind_where_and_masked_fill():
    def forward(m, x):
        x = torch.where(HIDDEN, m.a(x), m.b(x)).masked_fill(HIDDEN, 1.0)
        return m.c(x)

    model = Net(forward, a=conv(3, 4), b=conv(3, 4), c=conv(4, 2))
    with torch.no_grad():
        model.c.weight[:, [0, 3]] = 0
    check(model, {"a": [1, 2], "b": [1, 2], "c": (ALL, [1, 2])})


@pytest.mark.parametrize(
    "pool",
    [
        lambda x: F.avg_pool1d(x.flatten(2).mT, 3, 1, 1).mT.unflatten(2, (6, 6)),
        lambda x: F.max_pool3d(x[:, None], (3, 1, 1), 1, (1, 0, 0))[:, 0],
        lambda x: F.interpolate(x.flatten(2).mT, scale_factor=1.0, mode="linear").mT.unflatten(2, (6, 6)),
        lambda x: nn.MaxPool1d(3, 1, 1)(x.flatten(2).mT).mT.unflatten(2, (6, 6)),
    ],
    ids=["average", "maximum", "resized", "module"],
)
def test_pooling_among_the_channels_mixes_them(pool):
    model = Net(lambda m, x: m.b(pool(m.a(x))), a=conv(3, 4), b=conv(4, 2))
    kill(model.a, channels=[1, 2])
    check(model, {})
