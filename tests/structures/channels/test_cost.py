"""Counting what would be left: the arithmetic equals the analysis."""

import warnings

import numpy as np
import pytest
import torch
from support.helpers import Net, conv
from support.structured import (
    DIGIT,
    IMAGE,
    IMAGES,
    INPUTS,
    LARGER,
    NETWORKS,
    WITHOUT_NORMS,
    bind,
    library,
    scatter,
    without,
)
from torch import nn

from fadeout import Channels, SelectiveWeightDecay, compact, measure, models

SMALL = {"lenet5", "resnet20", "smallcnn", "vit"}


def choices(bound):
    """Some channels of each layer, at least one."""
    random = np.random.default_rng(0)
    for density in (0.02, 0.1, 0.3, 0.5, 0.9):
        alive = {layer.name: random.random(layer.width) < density for layer in bound.layers}
        for mask in alive.values():
            mask[random.integers(len(mask))] = True
        yield alive


def check(bound, quick):
    cost = bound.cost
    dependencies = cost.dependencies
    assert (dependencies is not None) == quick
    for alive in choices(bound):
        counts = []
        for cost.dependencies in (dependencies, None):
            counts.append(cost.left(alive))
        assert counts[0] == counts[1]
        cost.dependencies = dependencies
        most = max(int(mask.sum()) for mask in alive.values())
        assert dependencies is None or counts[0] <= cost.at_most_left(most)


@pytest.mark.parametrize(
    "network", [*NETWORKS, "digits", *(pytest.param(n, marks=pytest.mark.slow) for n in LARGER)]
)
def test_counting_by_labels_equals_the_analysis(network):
    build, arguments = (NETWORKS | LARGER).get(network, (models.lenet5, {"by": "norm"}))
    example = DIGIT if network == "digits" else IMAGE
    for of in ("parameters",) if network in LARGER else ("parameters", "operations"):
        bound = bind(build(), Channels(example, of=of, **arguments))
        check(bound, quick=network != "grouped")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SMALL else pytest.mark.slow) for name in IMAGES]
)
def test_networks_of_the_library(name):
    model, example = library(name), torch.zeros(2, *INPUTS.get(name, (3, 8, 8))).double()
    structure = Channels(example, by="norm" if name in WITHOUT_NORMS else "scale")
    check(bind(model, structure), quick=True)


def removed(model, sparsity):
    """What share of a network's parameters is gone after its removal and compaction."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    structure = Channels(IMAGE, by="norm")
    pruner = SelectiveWeightDecay(model, optimizer, sparsity=sparsity, steps=1, structure=structure)
    model(IMAGE).sum().backward()
    optimizer.step()
    pruner.remove()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "compact.. keeps")
        small = compact(model, IMAGE)
    return 1 - sum(p.numel() for p in small.parameters()) / sum(p.numel() for p in model.parameters())


SEEDS = pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 20), marks=pytest.mark.slow)])


@SEEDS
def test_a_value_of_which_nothing_would_be_read_keeps_a_channel(seeds):
    """A depthwise convolution reads two values side by side, and may have no use for one of them."""

    def forward(m, x):
        return m.c(m.d(torch.cat([m.a(x), m.b(x)], 1)))

    for seed in seeds:
        torch.manual_seed(seed)
        depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False)
        model = Net(forward, a=conv(3, 12), b=conv(3, 4), d=depthwise, c=conv(16, 2))
        with torch.no_grad():
            model.d.weight[12:] *= 0.1
        assert 0.6 <= removed(model, 0.6) < 0.8


def test_where_a_piece_would_be_empty_the_whole_keeps_one_of_its_channels():
    def forward(m, x):
        one, two, three = m.n(m.a(x)).relu().split(4, 1)
        return m.b(one) + m.c(two) + m.d(three)

    layers = {"a": conv(3, 12), "b": conv(4, 2), "c": conv(4, 2), "d": conv(4, 2)}
    model = Net(forward, **layers, n=nn.BatchNorm2d(12))
    bound = bind(model, Channels(IMAGE, by="norm"))
    check(bound, quick=True)
    alive = {layer.name: np.arange(layer.width) == 0 for layer in bound.layers}
    assert {node.name: kept for node, kept in bound.cost.kept(alive).items()}["a"] == 3
    for sparsity in (0.5, 0.7):
        small = compact(without(model, bound, sparsity), IMAGE)
        assert sum(p.numel() for p in small.parameters()) == bound.cost.left(bound._alive)


@SEEDS
def test_biases_that_are_born_where_only_the_first_of_two_layers_is_dead(seeds):
    """A dead channel in front of a depthwise convolution with a bias is a constant behind it."""
    for seed in seeds:
        torch.manual_seed(seed)
        depthwise = nn.Conv2d(16, 16, 1, groups=16)
        model = nn.Sequential(conv(3, 16), depthwise, nn.ReLU(), nn.Conv2d(16, 8, 1, bias=False))
        model = nn.Sequential(*model, nn.BatchNorm2d(8), nn.ReLU(), conv(8, 2)).eval()
        assert 0.3 <= removed(model, 0.3) < 0.5


# Operations -----------------------------------------------------------------------------------------

TOKENS = torch.zeros(2, 6, 8)


def attention(mix):
    """Queries, keys and values of four heads."""

    def forward(m, x):
        q, k, v = (side(x).unflatten(-1, (-1, 2)).transpose(1, 2) for side in (m.q, m.k, m.v))
        return m.o(mix(q, k, v).transpose(1, 2).flatten(2))

    return Net(forward, **{name: nn.Linear(8, 8) for name in "qkvo"})


def headed(**arguments):
    many = nn.MultiheadAttention(8, 4, **arguments)
    return Net(lambda m, x: m.o(m.many(x, x, x, need_weights=False)[0]), many=many, o=nn.Linear(8, 3))


WITH_PRODUCTS = {
    "fused": lambda: attention(nn.functional.scaled_dot_product_attention),
    "written out": lambda: attention(lambda q, k, v: (q @ k.transpose(-2, -1)).softmax(-1) @ v),
    "module": lambda: headed(batch_first=True),
    "module, batch behind": lambda: headed(add_zero_attn=True),
    "recurrent": lambda: Net(
        lambda m, x: m.o(m.r(x)[0]), r=nn.LSTM(8, 6, 2, bidirectional=True), o=nn.Linear(12, 3)
    ),
    "without a rule": lambda: Net(
        lambda m, x: m.b(m.a(x).relu()) @ m.c.weight, a=nn.Linear(8, 6), b=nn.Linear(6, 5), c=nn.Linear(9, 5)
    ),
}


@pytest.mark.parametrize("network", WITH_PRODUCTS)
def test_operations_are_those_that_are_measured(network):
    """Before, and whatever is removed: the products of attention, and what never goes, included."""
    model = scatter(WITH_PRODUCTS[network]())
    bound = bind(model, Channels(TOKENS, by="norm", of="operations"))
    assert bound.cost.total == measure(model, TOKENS).total.macs
    small = compact(without(model, bound, 0.1), TOKENS)
    left = measure(small, TOKENS).total.macs
    assert left == bound.cost.left(bound._alive)
    assert left <= 0.9 * bound.cost.total
