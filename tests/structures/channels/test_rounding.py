"""Widths in multiples, and a target that stays exact."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import conv, size
from support.structured import IMAGE, Residual, bind, scatter
from torch import nn

import fadeout
from fadeout import Channels, SelectiveWeightDecay, models
from fadeout.graph.gather import Gather
from fadeout.graph.trace import trace
from fadeout.methods import one_shot
from fadeout.structures.channels import bound, rounding
from fadeout.structures.channels.rounding import find_families, find_meeting


def wide(groups=1):
    return nn.Sequential(
        *(conv(3, 32, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        *(conv(32, 40, 3, groups=groups), nn.BatchNorm2d(40), nn.ReLU(), nn.Flatten(), nn.Linear(160, 3)),
    )


LARGE = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
NETWORKS = {
    "chain": (wide, {}, IMAGE),
    "grouped": (lambda: wide(groups=2), {}, IMAGE),
    "residual": (lambda: Residual(32), {}, IMAGE),
    "coupled": (lambda: Residual(32), {"couple": True}, IMAGE),
    "resnet": (lambda: models.resnet20(width=16), {}, LARGE),
    "coupled resnet": (
        lambda: models.resnet20(width=16, post_norm=False),
        {"couple": True, "candidates": "all"},
        LARGE,
    ),
    "depthwise": (lambda: models.mobilenetv2(width_mult=0.25), {}, LARGE),
}


def pruned(name, sparsity, multiple):
    build, arguments, example = NETWORKS[name]
    torch.manual_seed(0)
    model = scatter(build()).eval()
    structure = Channels(example, multiple_of=multiple, **arguments)
    bound = bind(model, structure)
    gone = bound.select({n: p.detach().abs() for n, p in bound.parameters.items()}, sparsity)
    masks = one_shot(model, sparsity, structure=structure)
    assert all(torch.equal(masks[name], ~gone[name]) for name in gone)
    small = fadeout.compact(model, example, couple=structure.couple)
    torch.testing.assert_close(small(example), model(example), rtol=1e-3, atol=1e-4)
    return model, small, masks, bound


def channel(cost):
    """The fraction of the network that one channel is, at most: nothing can be more exact."""
    whole = {name: np.ones(width, bool) for name, width in cost.widths.items()}
    left = [cost.left({**whole, name: np.arange(len(mask)) > 0}) for name, mask in whole.items()]
    return 1 - min(left) / cost.total


LARGER = ("coupled resnet", "depthwise")


@pytest.mark.parametrize(
    ("name", "sparsity"),
    [
        pytest.param(name, sparsity, marks=pytest.mark.slow if sparsity == 0.3 or name in LARGER else ())
        for name in NETWORKS
        for sparsity in (0.3, 0.75)
    ],
)
def test_physical_widths_are_multiples_and_the_target_is_exact(name, sparsity):
    model, small, _, bound = pruned(name, sparsity, 8)
    gone = 1 - size(small) / size(model)
    unrounded = bound.rounding.unrounded
    assert len(unrounded) <= max(len(family) for family in bound.rounding._families)
    if name == "grouped":  # its convolution loses channels only where all its groups do
        assert sparsity <= gone <= sparsity + 0.05
        return
    assert sparsity <= gone <= sparsity + max(0.01, channel(bound.cost)) + 1e-9
    for layer in bound.layers:
        norm = small.get_submodule(layer.name)
        left = next(m for m in norm.modules() if isinstance(m, nn.BatchNorm2d)).num_features
        fits = left % 8 == 0 or left == layer.width or left < 8
        assert fits or layer.name in unrounded, (layer.name, left, layer.width)
    if not unrounded:  # then what layers read has such a width too, sums included
        for part, whole in zip(*(map(_convolutions, (small, model))), strict=True):
            assert part.in_channels % 8 == 0 or part.in_channels in (whole.in_channels, *range(8)), part


def _convolutions(model):
    return [module for module in model.modules() if isinstance(module, nn.Conv2d)]


@pytest.mark.parametrize("name", ["chain", "residual", "resnet"])
def test_one_is_what_it_always_was(name):
    plain = pruned(name, 0.5, 1)[2]
    build, arguments, example = NETWORKS[name]
    torch.manual_seed(0)
    model = scatter(build())
    again = one_shot(model, 0.5, structure=Channels(example, **arguments))
    assert all(torch.equal(plain[key], again[key]) for key in plain)


def test_scores_decide_which_channels_fill_a_layer_up():
    """In each layer the highest stay."""
    model = scatter(wide())
    bound = bind(model, Channels(IMAGE, multiple_of=8))
    scores = {name: p.detach().abs() for name, p in bound.parameters.items()}
    marks = bound.select(scores, 0.5)
    for layer in bound.layers:
        gone = marks[layer.fading[0]]
        score = scores[layer.scored[0]]
        assert score[gone].max() <= score[~gone].min()


def test_a_narrow_network_leaves_a_layer_unrounded_and_says_so():
    """Eight channels of twelve are far more than a point: the target comes first."""
    torch.manual_seed(0)
    model = scatter(nn.Sequential(conv(3, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), conv(12, 3, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    structure = Channels(IMAGE, multiple_of=8, by="scale")
    pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.1, steps=5, structure=structure)
    left = int(pruner.masks()["1.weight"].sum())
    assert left == 10  # the most with which the target is reached
    said = "widths in multiples of 8, but for 1, left unrounded for the sake of the target"
    assert said in repr(pruner)


def test_families():
    """Layers of which any keeps a channel of a sum, and those around a depthwise convolution."""
    for couple in (False, True):
        bound = bind(Residual(8), Channels(IMAGE, couple=couple, multiple_of=4))
        names = [layer.name for layer in bound.layers]
        found = find_families(bound.cost.network, bound.cost.widths, couple)
        assert sorted([names[i] for i in family] for family in found) == [["bn1", "bn3"], ["bn2"]]
    bound = bind(models.resnet20(width=8), Channels(LARGE, multiple_of=4))  # whose sums are normed
    assert all(len(family) == 1 for family in bound.rounding._families)
    bound = bind(models.mobilenetv2(width_mult=0.1), Channels(LARGE, multiple_of=4))
    names = [layer.name for layer in bound.layers]
    first, second, *_ = ([names[i] for i in family] for family in bound.rounding._families)
    # its first block begins with a depthwise convolution, and has the width that it is given
    assert first == [f"features.{n}" for n in ("0.1", "1.conv.0.1", "1.conv.2", "2.conv.3", "3.conv.3")]
    assert second == ["features.2.conv.1.1"]  # with which what is in front goes


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=4),
    st.integers(2, 9),
    st.floats(0.05, 0.95),
    st.integers(0, 2),
    st.randoms(use_true_random=False),
)
def test_any_widths(widths, multiple, sparsity, least, random):
    """A network in which each channel costs one: never less than asked, and rounded but for one layer."""

    class Count:
        total = sum(widths)

        def left(self, alive):
            return sum(int(mask.sum()) for mask in alive.values())

    names = [str(number) for number in range(len(widths))]
    families = [[number] for number in range(len(widths))]
    scores = [np.array([random.choice([0.5, random.random()]) for _ in range(w)]) for w in widths]
    made = rounding.Rounding(multiple, families, names, Count(), least)
    wanted = sparsity * sum(max(w - least, 0) for w in widths)
    alive = made.choose(scores, wanted)
    kept = [int(alive[name].sum()) for name in names]
    gone = sum(widths) - sum(kept)
    assert gone >= wanted
    assert all(k >= min(least, w) for k, w in zip(kept, widths, strict=True))
    for name, k, width in zip(names, kept, widths, strict=True):
        assert k % multiple == 0 or k == width or k < multiple or name in made.unrounded
    assert gone - wanted <= 0.01 * sum(widths) + 1 or not made.unrounded
    assert gone - wanted < max(0.01 * sum(widths), 1) + 1e-9
    again = rounding.Rounding(multiple, families, names, Count(), least)
    again._last = random.randint(0, sum(widths))  # where the search begins makes no difference
    assert all(np.array_equal(mask, alive[name]) for name, mask in again.choose(scores, wanted).items())


def test_auto_is_measured_and_saved(monkeypatch):
    monkeypatch.setattr(bound, "multiple_for", lambda multiple, engine: 16)
    model = scatter(wide())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    build = {"sparsity": 0.5, "steps": 5, "structure": Channels(IMAGE, multiple_of="auto")}
    pruner = SelectiveWeightDecay(model, optimizer, **build)
    assert "multiples of 16" in repr(pruner)
    state = pruner.state_dict()
    pruner.detach()
    monkeypatch.setattr(bound, "multiple_for", lambda multiple, engine: 8)
    other = SelectiveWeightDecay(model, optimizer, **build)
    assert "multiples of 8" in repr(other)
    other.load_state_dict(state)
    assert "multiples of 16" in repr(other)
    assert other.state_dict()["structure"] == {"multiple_of": 16}


@pytest.mark.parametrize(("narrow", "expected"), [(0.6, 8), (0.9, 16)])
def test_the_measurement_is_made_once_on_each_machine(monkeypatch, tmp_path, narrow, expected):
    """Eight, where 24 and 40 channels are much faster than 32 and 48; the second time nothing is measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def time_networks(networks, example, engine):
        widths = [network(*example.args).shape[1] for network in networks.values()]
        assert widths == [24, 32, 40, 48, 56, 64]
        return dict(zip(networks, (narrow, 1.0, narrow, 1.0, 1.5 - narrow, 1.0), strict=True))

    monkeypatch.setattr(rounding, "time_networks", time_networks)
    assert rounding.multiple_for("auto", "pytorch") == expected
    monkeypatch.setattr(rounding, "time_networks", None)
    assert rounding.multiple_for("auto", "pytorch") == expected
    assert rounding.multiple_for(4, "pytorch") == 4
    with pytest.raises(TypeError):  # another engine has not been measured
        rounding.multiple_for("auto", "channels_last")


def test_layers_that_meet_at_an_addition_keep_equally_many_so_that_nothing_moves():
    torch.manual_seed(0)
    model = scatter(models.resnet20(width=32)).eval()
    one_shot(model, 0.7, structure=Channels(LARGE, multiple_of=8))
    small = fadeout.compact(model, LARGE, for_inference=True)
    gathers = [module for module in small.modules() if isinstance(module, Gather)]
    assert len(gathers) > 3
    assert all(gather.stays for gather in gathers)
    torch.testing.assert_close(small(LARGE), model(LARGE), rtol=1e-3, atol=1e-4)


def test_who_meets_at_additions():
    network, names = (
        trace(models.resnet20(width=8), LARGE),
        [f"layer{i}.{j}.post" for i in (1, 2) for j in (0, 1)],
    )
    widths = dict(zip([*names, "layer1.0.bn1"], (8, 8, 16, 16, 8), strict=True))
    families = find_families(network, widths, couple=False)
    assert families == [[0], [1], [2], [3], [4]]
    assert find_meeting(network, widths, families) == [[0, 1], [2, 3]]
    assert find_meeting(network, widths, find_families(network, widths, couple=True)) == []


def test_where_only_whole_multiples_count_others_are_filled_up():
    """Four layers of 32 that cost 1, 1, 1 and 30 for each multiple of 8: the large one overshoots."""
    weights = [1, 1, 1, 30]

    class Steps:
        total = 4.0 * sum(weights)

        def left(self, alive):
            return sum(w * -(-int(mask.sum()) // 8) for w, mask in zip(weights, alive.values(), strict=True))

    scores = [np.linspace(0.1, 0.2, 32)] * 3 + [np.linspace(0.15, 0.3, 32)]
    made = rounding.Rounding(8, [[0], [1], [2], [3]], list("abcd"), Steps(), 1)
    kept = {name: int(mask.sum()) for name, mask in made.choose(scores, 28.0).items()}
    assert kept["d"] == 24  # without which the target is out of reach, and two points more than asked
    assert all(kept[name] > 8 for name in "abc")
    assert Steps.total - made._cost.left(made.choose(scores, 28.0)) >= 28


@pytest.mark.parametrize("multiple", [0, -8, 1.5, "eight", True])
def test_multiples_that_are_none(multiple):
    with pytest.raises(ValueError, match="multiple_of is a whole number from 1 up, one of 'auto' or None"):
        Channels(IMAGE, multiple_of=multiple)


class Chain:
    """Four layers of 64 channels in a ring; what a layer costs is the product of both its widths."""

    names = "abcd"
    widths = dict.fromkeys(names, 64)
    total = 4.0 * 64**2

    def left(self, alive):
        kept = [int(alive[name].sum()) for name in self.names]
        return float(sum(one * other for one, other in zip(kept, kept[1:] + kept[:1], strict=True)))


def test_what_is_chosen_does_not_depend_on_what_was_chosen_before():
    """Else a training that is resumed, or whose masks somebody looked at, would go on with other channels."""
    random, cost = np.random.default_rng(0), Chain()

    def build():
        return rounding.Rounding(16, [[0], [1], [2], [3]], "abcd", cost, 1, meeting=[[0, 1], [2, 3]])

    for _ in range(300):
        scores = [random.random(64) + random.random() / 2 for _ in range(4)]
        wanted, other = random.uniform(0.1, 0.9, 2) * cost.total
        used, new = build(), build()
        used.choose(scores, other)
        again, first = used.choose(scores, wanted), new.choose(scores, wanted)
        assert all(np.array_equal(again[name], first[name]) for name in cost.names)
        gone = (cost.total - cost.left(first) - wanted) / cost.total
        assert 0 <= gone <= 0.01 + 2 / 4 / 64  # a percentage point, and a channel more than that
