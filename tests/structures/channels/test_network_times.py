"""A target in time, exact against its own table; clocks are replaced by sums worked out by hand."""

import copy
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import conv
from support.structured import IMAGE, Residual, bind, scatter
from torch import nn

import fadeout
from fadeout import Channels, SelectiveWeightDecay, models
from fadeout.graph.example import Example
from fadeout.methods import one_shot
from fadeout.structures.channels import bound, layer_times, network_times
from fadeout.structures.channels.network_times import Curve, _described, _non_negative
from fadeout.torch_bridge.modes import still

FIXED, ELEMENT = 5000.0, 0.25  # nanoseconds, of a forward pass and of each element between layers


def wide():
    return nn.Sequential(
        *(conv(3, 32, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        *(conv(32, 40, 3), nn.BatchNorm2d(40), nn.ReLU(), nn.Flatten(), nn.Linear(160, 3)),
    )


@pytest.fixture(autouse=True)
def clock(monkeypatch, tmp_path):
    """Weights take a nanosecond, an element that a norm and an activation make half of it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    timed = []

    def time_layer(layer, given, engine):
        timed.append(repr(layer))
        assert layer(given) is not None
        return layer.weight.numel() * 1e-9

    def time_networks(networks, example, engine):
        return {name: _nanoseconds(network, example) * 1e-9 for name, network in networks.items()}

    monkeypatch.setattr(layer_times, "time_layer", time_layer)
    monkeypatch.setattr(network_times, "time_networks", time_networks)
    monkeypatch.setattr(bound, "multiple_for", lambda multiple, engine: 8 if multiple == "auto" else multiple)
    return timed


def _nanoseconds(network, example):
    total = FIXED

    def add(module, args, output):
        nonlocal total
        is_layer = isinstance(module, nn.Conv2d | nn.Linear)
        total += module.weight.numel() if is_layer else 2 * ELEMENT * output.numel()

    kinds = (nn.Conv2d, nn.Linear, nn.ReLU)  # norms are folded, and others' elements pay for them
    hooks = [m.register_forward_hook(add) for m in network.modules() if isinstance(m, kinds)]
    with still(network):
        network(*example.args)
    for hook in hooks:
        hook.remove()
    return total


def nanoseconds(model):
    return _nanoseconds(copy.deepcopy(model).eval(), Example((IMAGE,)))


def pruner_of(model, structure, **arguments) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return SelectiveWeightDecay(model, optimizer, steps=5, structure=structure, **arguments)


def removed(pruner):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pruner.remove()


def test_the_table_finds_what_layers_elements_and_calls_take():
    bound = bind(scatter(wide()), Channels(IMAGE, of="time"))
    cost = bound.cost
    assert cost.scale == pytest.approx(1.0, rel=1e-6)
    assert cost.rate == pytest.approx(ELEMENT * 1e-9, rel=1e-6)
    assert cost.constant == pytest.approx(FIXED * 1e-9, rel=1e-6)
    assert cost.total == pytest.approx(nanoseconds(wide()) * 1e-9, rel=1e-6)


@pytest.mark.parametrize("faster", [1.5, 2, 3])
def test_the_target_is_exact_by_the_table_and_physically(faster):
    model = scatter(wide()).eval()
    before = nanoseconds(model)
    structure = Channels(IMAGE, faster=faster, by="scale")
    pruner = pruner_of(model, structure)
    removed(pruner)
    cost, alive = pruner._bound.cost, pruner._bound._alive
    left = cost.left(alive) / cost.total
    assert left <= 1 / faster
    small = fadeout.compact(model, IMAGE, for_inference=True)
    assert nanoseconds(small) / before == pytest.approx(left, rel=1e-6)
    for mask in alive.values():
        kept = int(mask.sum())
        assert kept % 8 == 0 or kept == len(mask) or kept <= 4, kept
    assert f"asked {faster:g}x, got {before / nanoseconds(small):.3g}x" in repr(pruner)


@pytest.mark.parametrize("faster", [2, 4, 6])
def test_the_promise_holds_where_no_sum_of_the_parts_does(faster, monkeypatch):
    """Narrow networks are faster than a sum without negative numbers can say."""

    def seconds(network, example):
        return (_nanoseconds(network, example) * 1e-9) ** 2

    monkeypatch.setattr(
        network_times,
        "time_networks",
        lambda networks, example, engine: {name: seconds(one, example) for name, one in networks.items()},
    )
    model = scatter(wide()).eval()
    before = seconds(copy.deepcopy(model), Example((IMAGE,)))
    pruner = pruner_of(model, Channels(IMAGE, faster=faster, by="scale"))
    removed(pruner)
    small = fadeout.compact(model, IMAGE, for_inference=True)
    cost = pruner._bound.cost
    says = cost.total / cost.left(pruner._bound._alive)
    assert before / seconds(small, Example((IMAGE,))) == pytest.approx(says, rel=0.03)


def test_narrow_layers_keep_widths_that_were_timed():
    bound = bind(scatter(wide()), Channels(IMAGE, of="time", by="scale"))
    scores = {name: p.detach().abs() for name, p in bound.parameters.items()}
    seen = set()
    for sparsity in np.linspace(0, 0.7, 30):
        bound.select(scores, float(sparsity))
        if not bound.rounding.unrounded:
            seen |= {int(mask.sum()) for mask in bound._alive.values()}
    assert seen <= {2, 4, 8, 16, 24, 32, 40}
    assert seen & {2, 4}


@given(
    st.lists(st.tuples(_seconds := st.floats(1e-6, 1e3), _seconds), min_size=1, max_size=6),
    _seconds,
    _seconds,
)
def test_a_curve_never_falls(points, one, other):
    curve = Curve(*zip(*points, strict=True))
    less, more = sorted((one, other))
    assert curve.at(less) <= curve.at(more) * (1 + 1e-9)


def test_a_table_of_an_earlier_version_has_no_curve():
    bound = bind(scatter(wide()), Channels(IMAGE, of="time"))
    times = {name: value for name, value in bound.state()["times"].items() if name != "curve"}
    bound.restore({"times": times})
    assert bound.cost.curve == Curve()
    assert bound.cost.total == pytest.approx(nanoseconds(wide()) * 1e-9, rel=1e-6)


def test_the_least_is_taken_that_reaches_the_target_without_rounding():
    bound = bind(scatter(wide()), Channels(IMAGE, of="time", multiple_of=1, by="scale"))
    scores = {name: p.detach().abs() for name, p in bound.parameters.items()}
    bound.select(scores, 0.5)
    gone = bound.cost.total - bound.cost.left(bound._alive)
    assert gone >= 0.5 * bound.cost.total
    fewer = {name: mask.copy() for name, mask in bound._alive.items()}
    taken = [(scores[f"{n}.weight"][i].item(), n, i) for n, m in fewer.items() for i in np.flatnonzero(~m)]
    _, name, channel = max(taken)  # the last that went
    fewer[name][channel] = True
    assert bound.cost.total - bound.cost.left(fewer) < 0.5 * bound.cost.total


def test_faster_and_sparsity_say_the_same():
    masks = []
    for structure, arguments in (
        (Channels(IMAGE, faster=2, by="scale"), {}),
        (Channels(IMAGE, of="time", by="scale"), {"sparsity": 0.5}),
    ):
        torch.manual_seed(0)
        masks.append(pruner_of(scatter(wide()), structure, **arguments).masks())
    assert all(torch.equal(masks[0][name], masks[1][name]) for name in masks[0])


def test_alike_layers_are_timed_once_and_only_once_on_this_machine(clock):
    model = Residual(16)  # of whose four layers two are alike
    first = bind(model, Channels(IMAGE, of="time"))
    assert len(clock) == len(set(clock)) == 4 + 4 * 4 + 4 * 2  # at widths 2, 4, 8 and 16; outputs 2 and 3
    again = bind(model, Channels(IMAGE, of="time"))
    assert len(clock) == 28
    assert again.state() == first.state()


def test_what_names_a_network_holds_no_address():
    """As the text of a function does, which differs from process to process."""
    cost = bind(Residual(8), Channels(IMAGE, of="time")).cost
    text = _described(cost, {"a": np.ones(2, bool)}, cost.sizes)
    assert "relu" in text
    assert "0x" not in text


def test_a_state_and_a_copy_bring_their_table_along(clock, monkeypatch, tmp_path):
    torch.manual_seed(0)
    model = scatter(wide())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    build: Any = {"steps": 5, "structure": Channels(IMAGE, faster=2)}
    pruner: Any = SelectiveWeightDecay(model, optimizer, **build)
    state = pickle.loads(pickle.dumps(pruner.state_dict()))
    bound = pickle.loads(pickle.dumps(pruner._bound))
    assert bound.cost.total == pruner._bound.cost.total
    pruner.detach()
    # a machine on which the last layer alone takes time
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(
        layer_times,
        "time_layer",
        lambda layer, *_: 1e-9 + isinstance(layer, nn.Linear) * layer.weight.numel(),
    )
    other: Any = SelectiveWeightDecay(model, optimizer, **build)
    assert other._bound.cost.total != pruner._bound.cost.total
    other.load_state_dict(state)
    assert other._bound.cost.total == pruner._bound.cost.total
    assert other.state_dict()["structure"] == state["structure"]


def test_a_speed_that_no_choice_reaches():
    structure = Channels(IMAGE, faster=50)
    with pytest.raises(
        ValueError, match=r"no choice of channels is 50 times as fast in pytorch .* ([\d.]+)"
    ) as said:
        pruner_of(wide(), structure)
    best = float(str(said.value).split()[-4])
    assert 2 < best < 50
    pruner_of(wide(), Channels(IMAGE, faster=best))  # which can be reached, as said


def test_targets_that_contradict_each_other():
    with pytest.raises(ValueError, match="faster=4 is a target in time, and of='operations' is another"):
        Channels(IMAGE, faster=4, of="operations")
    with pytest.raises(ValueError, match=r"faster=4 is sparsity=0\.75, got 0\.5: say it once"):
        one_shot(wide(), 0.5, structure=Channels(IMAGE, faster=4))
    with pytest.raises(ValueError, match="faster is a number above 1"):
        Channels(IMAGE, faster=0.5)
    with pytest.raises(ValueError, match="engine is one of 'pytorch', 'channels_last', 'onnxruntime'"):
        Channels(IMAGE, faster=2, engine="tensorrt")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="sparsity is a fraction between 0 and 1, or a schedule; got None"):
        pruner_of(wide(), Channels(IMAGE, of="time"))


NETWORKS = {
    "residual": (lambda: Residual(32), {}),
    "coupled": (lambda: Residual(32), {"couple": True}),
    "depthwise": (lambda: _grouped(16), {}),
    "grouped": (lambda: _grouped(), {}),
    "heads": (lambda: models.vit(image_size=8, dim=12, depth=1, heads=3), {"by": "norm"}),
}


def _grouped(groups=2):
    return nn.Sequential(
        *(conv(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), conv(16, 16, 3, groups=groups), nn.BatchNorm2d(16)),
        *(nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)),
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_time_never_grows_when_channels_go(name):
    build, arguments = NETWORKS[name]
    example = torch.zeros(1, 3, 8, 8) if name == "heads" else IMAGE
    structure = Channels(example, of="time", **arguments)
    bound = bind(scatter(build()), structure)
    widths, random = bound.cost.widths, np.random.default_rng(0)
    alive = {layer: random.permutation(width) < max(0.9 * width, 1) for layer, width in widths.items()}
    before = bound.cost.left(alive)
    for layer in list(widths)[:6]:
        alive[layer] = alive[layer] & (random.random(widths[layer]) < 0.5)
        alive[layer][0] = True
        now = bound.cost.left(alive)
        assert now <= before + 1e-15
        before = now
    assert before < bound.cost.total


def test_weights_are_never_negative():
    rows = np.array([[1.0, 1.0], [2.0, 1.0], [3.0, 1.0]])
    assert _non_negative(rows, np.array([2.0, 3.0, 4.0])) == pytest.approx([1.0, 1.0])
    assert _non_negative(rows, np.array([1.0, 2.5, 4.0])) == pytest.approx([1.25, 0.0], abs=0.1)
