"""How long a network takes when some channels are dead.

Convolutions and linear layers are timed one by one (``layer_times.py``). What lies between them (norms,
activations, additions, gathers) goes with the number of elements, and calls cost something whatever their
size. How much, a few whole networks say, which are cut at random and timed too; and since no such sum holds
from wide networks to narrow ones, a curve through them corrects it.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.nn.modules.conv import _ConvNd

from fadeout.compaction.cut import cut
from fadeout.engines import Engine, time_networks, timings_of
from fadeout.graph.analysis import Analysis
from fadeout.graph.network import Network
from fadeout.graph.rules.base import Term
from fadeout.graph.rules.calls import name_of, source
from fadeout.structures.channels.cost import Cost, analyse_alive, dependencies_of
from fadeout.structures.channels.dependencies import Alive, all_alive
from fadeout.structures.channels.layer_times import LayerTimes, reads, real_device, show_progress, time_layers
from fadeout.structures.channels.rounding import Rounding

_EVEN = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)  # the speeds of whole networks that are timed, roughly
_UNEVEN = (2.0, 4.0, 8.0)  # of those that lose more of some layers, which tell the parts of the sum apart


@dataclass(frozen=True)
class TimedLayer:
    """A layer in the graph: the values whose channels it reads and writes, and its table."""

    reads: fx.Node | None
    """None where all its inputs stay."""
    writes: fx.Node
    times: LayerTimes

    def seconds(self, sizes: Mapping[fx.Node, int]) -> float:
        inputs = self.times.inputs[-1] if self.reads is None else sizes[self.reads]
        return self.times.at(inputs, sizes[self.writes])


@dataclass(frozen=True)
class Curve:
    """What networks took, by what the sum of their parts says; straight in between, both in logarithms.

    It never falls: a sum that says less never becomes more.

    Args:
        says: seconds, in any order.
        took: seconds, one for each.

    >>> curve = Curve([1.0, 4.0], [1.0, 8.0])
    >>> [round(curve.at(seconds), 6) for seconds in (0.5, 1.0, 2.0, 4.0, 8.0)]
    [0.5, 1.0, 2.828427, 8.0, 16.0]
    """

    says: Sequence[float] = (1.0,)
    took: Sequence[float] = (1.0,)

    @cached_property
    def _logs(self) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(self.says, kind="stable")
        return np.log(np.array(self.says)[order]), np.maximum.accumulate(np.log(np.array(self.took)[order]))

    def at(self, seconds: float) -> float:
        """What a network takes whose parts sum up to so much; beyond the ends the ratio stays."""
        if seconds <= 0:
            return 0.0
        says, took = self._logs
        within = min(max(math.log(seconds), says[0]), says[-1])
        return seconds * math.exp(np.interp(within, says, took) - within)


@dataclass
class TimeCost(Cost):
    """Seconds of a forward pass, whichever channels are alive.

    ``curve(scale * (sum of the layers) + rate * (elements of all other values) + constant)``
    """

    layers: list[TimedLayer] = field(default_factory=list)
    elements: dict[fx.Node, int] = field(default_factory=dict)
    """How many there are for each channel of a value that no layer makes."""
    scale: float = 1.0
    rate: float = 0.0
    constant: float = 0.0
    curve: Curve = field(default_factory=Curve)

    def parts(self, sizes: Mapping[fx.Node, int]) -> tuple[float, float, float]:
        """The seconds of the layers alone, the other elements, and one."""
        others = sum(count * sizes[node] for node, count in self.elements.items())
        return sum(layer.seconds(sizes) for layer in self.layers), float(others), 1.0

    def _sum(
        self, sizes: Mapping[fx.Node, int], born: Iterable[fx.Node], groups: Mapping[Term, int] | None = None
    ) -> float:
        layers, elements, _ = self.parts(sizes)
        return self.curve.at(self.scale * layers + self.rate * elements + self.constant)


def measure_time(
    network: Network,
    widths: Mapping[str, int],
    rounding: Callable[[Cost], Rounding],
    *,
    engine: Engine,
    multiple: int,
    couple: bool = False,
) -> dict[str, Any]:
    """Time the layers of a network, and the whole of it: all that :func:`find_time` wants to know.

    It is plain data, that goes into a pruner's state and to all processes.

    Args:
        network: the traced network.
        widths: the number of channels of each layer that may lose some, by module name.
        rounding: for a cost, what chooses channels.
        engine: where it is to be fast.
        multiple: of channels, that the engine likes.
        couple: both sides of an addition keep the same channels.
    """
    whole = analyse_alive(network, all_alive(widths), couple)
    layers = time_layers(whole, _layers(whole), engine, multiple)
    weights = dict(zip(_WEIGHTS, (1.0, 0.0, 0.0), strict=True))
    cost = find_time(network, widths, couple, {"layers": layers, **weights})
    return {"layers": layers, **_fit(cost, _cut_at_random(cost, rounding(cost)), engine)}


def find_time(
    network: Network, widths: Mapping[str, int], couple: bool, measured: Mapping[str, Any]
) -> TimeCost:
    """Find what a network takes as a function of the channels that are alive.

    Args:
        network: the traced network.
        widths: the number of channels of each layer that may lose some, by module name.
        couple: both sides of an addition keep the same channels.
        measured: what :func:`measure_time` found.
    """
    whole = analyse_alive(network, all_alive(widths), couple)
    layers = _layers(whole)
    tables = [LayerTimes(**measured["layers"][network.key(node)]) for node in layers]
    timed = [TimedLayer(reads(n, whole), n, table) for n, table in zip(layers, tables, strict=True)]
    done = set(layers)
    elements = {
        node: whole.shape(node).numel() // flow.width
        for node, flow in whole.flows.items()
        if node.op.startswith("call") and node in network.shapes
        if node not in done and not _is_free(node, whole)
    }
    nodes = [*(one for layer in timed for one in (layer.reads, layer.writes) if one is not None), *elements]
    sizes = {node: whole.flows[node].width for node in nodes}
    dependencies = dependencies_of(network, sizes, widths, couple)
    scale, rate, constant = (float(measured[name]) for name in _WEIGHTS)
    curve = Curve(**measured.get("curve", {}))
    return TimeCost(
        *(network, couple, dict(widths), [], [], sizes, dependencies),
        layers=timed,
        elements=elements,
        scale=scale,
        rate=rate,
        constant=constant,
        curve=curve,
    )


_WEIGHTS = ("scale", "rate", "constant")


def time_removal(network: Network, alive: Alive, engine: Engine, couple: bool) -> tuple[float, float]:
    """The seconds of a network as it is, and of what is left of it."""
    whole = all_alive({name: len(mask) for name, mask in alive.items()})
    models = {name: _cut_alive(network, each, couple) for name, each in (("whole", whole), ("left", alive))}
    seconds = time_networks(models, network.example.map(_real), engine)
    return seconds["whole"], seconds["left"]


def _layers(whole: Analysis) -> list[fx.Node]:
    """The layers that are timed by themselves."""
    calls = (node for node in whole.flows if node.op == "call_module")
    return [node for node in calls if isinstance(whole.module(node), nn.Linear | _ConvNd)]


def _is_free(node: fx.Node, whole: Analysis) -> bool:
    """Whether a value is another one's memory, looked at in another way."""
    name = type(whole.module(node)).__name__ if node.op == "call_module" else name_of(node)
    return whole.rules[node].is_identity or name.lower() in _VIEWS


_VIEWS = {"flatten", "permute", "reshape", "squeeze", "transpose", "unflatten", "unsqueeze", "view"}


def _fit(cost: TimeCost, networks: Sequence[Alive], engine: Engine) -> dict[str, Any]:
    """How much layers, the elements between them and calls weigh, and the curve through whole networks."""
    sizes = [cost.kept(alive) for alive in networks]
    with timings_of(engine, real_device(cost.network)) as timings:
        keys = [_fingerprint(cost, *each) for each in zip(networks, sizes, strict=True)]
        if any(key not in timings for key in keys):
            show_progress(f"timing {len(keys)} whole networks in {engine}", True)
            models = {
                key: _cut_alive(cost.network, alive, cost.couple)
                for key, alive in zip(keys, networks, strict=True)
            }
            timings.update(time_networks(models, cost.network.example.map(_real), engine))
        took = np.array([timings[key] for key in keys])
    parts = np.array([cost.parts(each) for each in sizes])
    weights = _non_negative(parts / took[:, None], np.ones(len(took)))
    curve = {"says": (parts @ weights)[: len(_EVEN)].tolist(), "took": took[: len(_EVEN)].tolist()}
    return {**dict(zip(_WEIGHTS, weights.tolist(), strict=True)), "curve": curve}


def _cut_at_random(cost: Cost, rounding: Rounding) -> list[Alive]:
    """What is left of a network if scores are random: even ones, from the whole on, and uneven ones."""
    random = np.random.default_rng(0)
    even = [random.random(width) for width in cost.widths.values()]
    uneven = [scores + random.random() for scores in even]
    asked = [*((even, speed) for speed in _EVEN), *((uneven, speed) for speed in _UNEVEN)]
    return [rounding.choose(scores, (1 - 1 / speed) * cost.total) for scores, speed in asked]


def _cut_alive(network: Network, alive: Alive, couple: bool) -> nn.Module:
    """What ``compact(..., for_inference=True)`` would leave of it, with weights that may be timed."""
    small = cut(analyse_alive(network, alive, couple), fold=True).model
    if any(tensor.is_meta for tensor in (*small.parameters(), *small.buffers())):
        small = small.to_empty(device="cpu")
        for tensor in (*small.parameters(), *small.buffers()):
            tensor.detach().fill_(0.5 if tensor.is_floating_point() else 0)
    return small


def _fingerprint(cost: TimeCost, alive: Alive, sizes: Mapping[fx.Node, int]) -> str:
    """What names a network whose time was measured."""
    text = _described(cost, alive, sizes)
    return f"network {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _described(cost: TimeCost, alive: Alive, sizes: Mapping[fx.Node, int]) -> str:
    """All that the time of a network depends on, the same in every process."""
    network = cost.network
    layers = [
        [str(network.module(layer.writes)), str(network.shapes[source(layer.writes)])]
        for layer in cost.layers
    ]
    others = [[str(network.module(node)), name_of(node), str(network.shapes[node])] for node in cost.elements]
    masks = [mask.tolist() for mask in alive.values()]
    return json.dumps([layers, others, masks, list(sizes.values())])


def _non_negative(rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The least-squares solution among those without negative numbers: of few, so all subsets are tried."""
    columns, best, least = rows.shape[1], np.zeros(rows.shape[1]), math.inf
    for chosen in itertools.product((False, True), repeat=columns):
        picked = np.array(chosen)
        if not picked[0]:
            continue  # layers always take time
        found = np.zeros(columns)
        found[picked] = np.linalg.lstsq(rows[:, picked], wanted, rcond=None)[0]
        error = float(np.square(rows @ found - wanted).sum())
        if (found >= 0).all() and error < least:
            best, least = found, error
    return best


def _real(one: torch.Tensor) -> torch.Tensor:
    return torch.zeros(one.shape, dtype=one.dtype, device="cpu") if one.is_meta else one
