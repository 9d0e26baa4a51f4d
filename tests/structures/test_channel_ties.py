"""Channels that go only together: before and after a depthwise convolution."""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.helpers import Net, conv, size
from support.structured import bind, magnitudes, scatter, without
from torch import nn

import fadeout
from fadeout import Channels, models
from fadeout.structures.channel_ties import Ties

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
    return nn.Sequential(
        *(
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
    )


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


NETWORKS = {  # with the candidate of each channel, layer by layer
    "separable": (separable, "0123 0123 45678"),
    "two in a row": (two_in_a_row, "01 01 01"),
    "multiplied": (multiplied, "01 000111"),
    "side by side": (side_by_side, "01 234 01234"),
    "branches": (branches, "01 01 01 01"),
    "gated": (gated, "01 01"),
    "residual": (residual, "01 23 45"),
}


def candidates(bound):
    return list(bound.ties.by_layer(np.arange(bound.ties.count)).values())


@pytest.mark.parametrize("name", NETWORKS)
def test_candidates(name):
    build, expected = NETWORKS[name]
    bound = bind(build(), Channels(IMAGES))
    assert " ".join("".join(map(str, own)) for own in candidates(bound)) == expected
    count = int(max(expected.replace(" ", ""))) + 1
    assert bound.in_words() == f"{count} channels of {len(bound.layers)} layers"


def test_filters_without_norms():
    """By norm, the filters of a depthwise convolution go with what they read."""
    model = nn.Sequential(conv(3, 3), nn.ReLU(), nn.Conv2d(3, 3, 3, groups=3), nn.ReLU(), conv(3, 2))
    first, second = candidates(bind(model, Channels(IMAGES, by="norm")))
    assert first.tolist() == second.tolist() == [0, 1, 2]


def test_nothing_is_tied_without_a_depthwise_convolution():
    for model in (models.resnet20(width=2), models.densenet40(growth=2)):
        bound = bind(model, Channels(IMAGES))
        assert np.concatenate(candidates(bound)).tolist() == list(range(sum(x.width for x in bound.layers)))


def test_score_by_the_mean():
    model = separable()
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([0.1, 2.0, 2.0, 0.9]))  # means 1.55, 1.05, 2.5, 0.8
        model[4].weight.copy_(torch.tensor([3.0, 0.1, 3.0, 0.7]))
        model[7].weight.fill_(5.0)
    bound = bind(model, Channels(IMAGES))
    for number, gone in ((1, {3}), (2, {1, 3}), (3, {0, 1, 3})):
        small = size(model) - number * (4 + 2 + 9 + 2 + 5)  # filter, norm, filter, norm, slice of the reader
        marks = bound.select(magnitudes(bound), 1 - small / size(model) - 1e-9)
        for name in ("1.weight", "1.bias", "4.weight", "4.bias"):
            assert set(marks[name].nonzero().view(-1).tolist()) == gone
        assert not marks["7.weight"].any()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("min_channels", [1, 2])
def test_all_that_can_go_goes(name, min_channels):
    """What is said to be out of reach is, and what is not is reached."""
    model = scatter(NETWORKS[name][0]())
    bound = bind(model, Channels(IMAGES, min_channels=min_channels))
    most = 1 - bound.cost.at_most_left(bound.ties.least(min_channels)) / bound.cost.total
    if most == 0:
        return
    bound.check(most)
    pruned = without(model, bound, most)
    small = fadeout.compact(pruned, IMAGES)
    assert size(small) <= (1 - most) * size(model) + 1e-9
    assert all(
        (module.weight != 0).sum() >= min(min_channels, len(module.weight)) for module in norms(pruned)
    )
    with pytest.raises(ValueError, match="can go"):
        bound.check(most + 1e-6)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("options", [{}, {"by": "norm"}, {"multiple_of": 2}], ids=str)
def test_what_goes_is_gone_on_both_sides(name, options):
    torch.manual_seed(0)
    model = scatter(NETWORKS[name][0]())
    bound = bind(model, Channels(IMAGES, **options))
    target = 0.8 * (1 - bound.cost.at_most_left(bound.ties.least(1)) / bound.cost.total)
    pruned = without(model, bound, target)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small = fadeout.compact(pruned, IMAGES)
    assert size(small) <= (1 - target) * size(model) + 1e-9
    assert any((module.weight == 0).any() for module in norms(pruned))
    assert all((module.weight != 0).all() for module in norms(small))


def test_what_is_held_takes_its_other_half_along():
    """A pruner that holds one side at zero, as a state from before may say."""
    ties = Ties({"a": 2, "b": 2}, np.array([0, 1, 0, 1]))
    ranks = ties.rank([np.array([1.0, -np.inf]), np.array([1.0, 9.0])])
    assert np.isneginf(ranks).tolist() == [False, True]


def norms(model):
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]


@pytest.mark.parametrize("options", [{}, {"by": "scale"}, {"by": "norm"}, {"multiple_of": 8}], ids=str)
def test_no_channel_fades_in_vain(options):
    """MobileNetV2, half of which fades while it trains: compact removes all that faded, without a warning."""
    torch.manual_seed(0)
    model, images = models.mobilenetv2(width_mult=0.25), torch.randn(8, 3, 16, 16)
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
    assert sum(len(m.weight) for m in norms(small)) == sum(int((m.weight != 0).sum()) for m in norms(model))
    assert 0.5 <= 1 - size(small) / size(model) < (0.515 if "multiple_of" in options else 0.505)
