"""Depthwise convolutions: the channels in front of them are those of what lies behind."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from support.helpers import Net, conv, size
from support.structured import bind, scatter, without
from torch import nn

import fadeout
from fadeout import Channels, models

IMAGES = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def norm(width):
    return nn.BatchNorm2d(width)


def depthwise(width, times=1, **options):
    return nn.Conv2d(width, times * width, 3, padding=1, groups=width, bias=False, **options)


def separable():
    return nn.Sequential(
        *(conv(3, 4), norm(4), nn.ReLU(), depthwise(4), norm(4), nn.ReLU(), conv(4, 5), norm(5), conv(5, 2))
    )


def two_in_a_row():
    layers = (
        conv(3, 2),
        norm(2),
        nn.ReLU6(),
        depthwise(2),
        norm(2),
        nn.ReLU(),
        depthwise(2),
        norm(2),
        conv(2, 2),
    )
    return nn.Sequential(*layers)


def multiplied():
    return nn.Sequential(conv(3, 2), norm(2), depthwise(2, times=3), norm(6), nn.ReLU(), conv(6, 2))


def side_by_side():
    """Two values go into one depthwise convolution, one after the other."""
    return Net(
        lambda m, x: m.c(m.n(m.d(torch.cat([m.p(m.a(x)), m.q(m.b(x))], 1)))),
        **{"a": conv(3, 2), "p": norm(2), "b": conv(3, 3), "q": norm(3), "d": depthwise(5), "n": norm(5)},
        c=conv(5, 2),
    )


def branches():
    """As MobileOne trains: the channel has a norm of its own on the way past."""

    def forward(m, x):
        x = m.p(m.a(x)).relu()
        return m.c((m.q(m.d(x)) + m.r(m.e(x)) + m.s(x)).relu())

    return Net(
        forward,
        **{"a": conv(3, 2), "p": norm(2), "d": depthwise(2), "q": norm(2), "e": depthwise(2), "r": norm(2)},
        **{"s": norm(2), "c": conv(2, 2)},
    )


def gated():
    """Squeeze and excite: what is multiplied has the channels of the depthwise convolution, the gate too."""

    def forward(m, x):
        x = m.q(m.d(m.p(m.a(x)).relu())).relu()
        return m.c(x * m.h(m.g(x.mean((2, 3), keepdim=True)).relu()).sigmoid())

    return Net(
        forward,
        **{"a": conv(3, 2), "p": norm(2), "d": depthwise(2), "q": norm(2), "g": conv(2, 3), "h": conv(3, 2)},
        c=conv(2, 2),
    )


def residual():
    """The sum goes on to a depthwise convolution: each of its sides can go without it."""

    def forward(m, x):
        x = m.p(m.a(x)).relu()
        return m.c(m.r(m.d(x + m.q(m.b(x)))))

    return Net(
        forward,
        **{"a": conv(3, 2), "p": norm(2), "b": conv(2, 2), "q": norm(2), "d": depthwise(2), "r": norm(2)},
        c=conv(2, 2),
    )


def mixed():
    """As in MixNet: parts of a value are filtered apart, and normed together."""

    def forward(m, x):
        a, b = m.p(m.a(x)).relu().split([2, 3], 1)
        return m.c(m.q(torch.cat([m.d(a), m.e(b)], 1)))

    return Net(
        forward,
        **{
            "a": conv(3, 5),
            "p": norm(5),
            "d": depthwise(2),
            "e": depthwise(3),
            "q": norm(5),
            "c": conv(5, 2),
        },
    )


def no_norm_behind():
    return nn.Sequential(conv(3, 4), norm(4), nn.ReLU(), depthwise(4), nn.ReLU(), conv(4, 2))


NETWORKS = {  # with the layers that have candidates, and how many
    "separable": (separable, {"4": 4, "7": 5}),
    "two in a row": (two_in_a_row, {"7": 2}),
    "multiplied": (multiplied, {"3": 6}),
    "side by side": (side_by_side, {"p": 2, "q": 3, "n": 5}),
    "branches": (branches, {"q": 2, "r": 2, "s": 2}),
    "gated": (gated, {"q": 2}),
    "mixed": (mixed, {"p": 5, "q": 5}),
    "residual": (residual, {"p": 2, "q": 2, "r": 2}),
    "no norm behind": (no_norm_behind, {"1": 4}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_candidates(name):
    build, expected = NETWORKS[name]
    assert {layer.name: layer.width for layer in bind(build(), Channels(IMAGES)).layers} == expected


def test_filters_without_norms():
    """By norm, the filters of a depthwise convolution are what the channels in front go with."""
    model = nn.Sequential(conv(3, 3), nn.ReLU(), nn.Conv2d(3, 3, 3, groups=3), nn.ReLU(), conv(3, 2))
    assert [layer.name for layer in bind(model, Channels(IMAGES, by="norm")).layers] == ["2"]


@pytest.mark.parametrize("name", sorted(NETWORKS.keys() - {"side by side", "mixed"}))
@pytest.mark.parametrize("options", [{}, {"by": "norm"}, {"multiple_of": 2}], ids=str)
def test_what_goes_is_gone_on_both_sides(name, options):
    torch.manual_seed(0)
    model = scatter(NETWORKS[name][0]())
    bound = bind(model, Channels(IMAGES, **options))
    target = 0.8 * (1 - bound.cost.at_most_left(1) / bound.cost.total)
    pruned = without(model, bound, target)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small = fadeout.compact(pruned, IMAGES)
    assert size(small) <= (1 - target) * size(model) + 1e-9
    assert all((module.weight != 0).all() for module in norms(small))


def norms(model):
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]


@pytest.mark.parametrize(
    "options",
    [{}, {"multiple_of": 8}, *(pytest.param({"by": by}, marks=pytest.mark.slow) for by in ("scale", "norm"))],
    ids=str,
)
def test_no_channel_fades_in_vain(options):
    """MobileNetV2, half of which fades while it trains: compact removes all that faded, without a warning."""
    torch.manual_seed(0)
    model, images = models.mobilenetv2(width_mult=0.5), torch.randn(8, 3, 16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    structure = Channels(images, **options)
    pruner = fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=8, structure=structure)
    for _ in range(8):
        optimizer.zero_grad()
        F.cross_entropy(model(images), torch.arange(8)).backward()
        optimizer.step()
    pruner.remove()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small = fadeout.compact(model, images)
    assert any((module.weight == 0).any() for module in norms(model))
    assert all((module.weight != 0).all() for module in norms(small))
    assert 0.5 <= 1 - size(small) / size(model) < (0.515 if "multiple_of" in options else 0.505)
