"""How long a network takes when some channels are dead: a table of what its layers take at each width.

Each convolution and linear layer is timed by itself at a few widths, on this machine; between these a width
costs what the next multiple does that the processor likes. What lies between the layers (norms, activations,
additions, gathers) goes with the number of elements, and calls cost something whatever their size. How much,
a few whole networks say, which are cut at random and timed too.
"""

import hashlib
import itertools
import json
import logging
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.nn.modules.conv import _ConvNd

from fadeout.compaction.cut import cut
from fadeout.engines import Engine, time_layer, time_networks, timings_of
from fadeout.graph.rules.base import Analysis, Network, Term
from fadeout.graph.rules.calls import name_of, source
from fadeout.structures.channel_cost import Cost, analyse_alive, dependencies_of
from fadeout.structures.channel_deps import Alive

_SHARES = (1.0, 0.5, 0.25)  # of a layer's width, at which it is timed
_NETWORKS = {  # the shares of the layers of whole networks, from and to
    "dense": (1.0, 1.0),
    "half": (0.5, 0.5),
    "quarter": (0.25, 0.25),
    "least": (0.0, 0.0),
    "mixed": (0.0, 1.0),
}


@dataclass(frozen=True)
class LayerTimes:
    """The seconds of one layer by the channels that it reads and writes.

    Args:
        multiple: widths above half of it cost what the next multiple does.
        inputs: numbers of channels that were timed, growing.
        outputs: the same.
        seconds: (inputs, outputs).

    >>> times = LayerTimes(8, [2, 4, 8, 16], [8], [[1.0], [2.0], [3.0], [4.0]])
    >>> [times.at(number, 8) for number in (1, 3, 4, 5, 8, 9)]
    [1.0, 1.5, 2.0, 3.0, 3.0, 4.0]
    """

    multiple: int
    inputs: Sequence[int]
    outputs: Sequence[int]
    seconds: Sequence[Sequence[float]]
    _places: tuple[list[float], list[float]] = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        rising = np.maximum.accumulate(np.maximum.accumulate(np.array(self.seconds), 0), 1)
        places = tuple(self._place(widths) for widths in (self.inputs, self.outputs))
        object.__setattr__(self, "seconds", rising.tolist())  # more channels never take less time
        object.__setattr__(self, "_places", places)

    def _place(self, widths: Sequence[int]) -> list[float]:
        """Where each number of channels, from 0 on, lies between those that were timed."""
        numbers = np.arange(widths[-1] + 1)
        up = -(-numbers // self.multiple) * self.multiple
        liked = np.where(numbers <= self.multiple // 2, numbers, up)
        return np.interp(np.minimum(liked, widths[-1]), widths, np.arange(len(widths))).tolist()

    def at(self, inputs: int, outputs: int) -> float:
        """The seconds at a width, between those that were timed."""
        row, column = self._places[0][inputs], self._places[1][outputs]
        (i, x), (j, y) = (int(row), row % 1), (int(column), column % 1)
        upper, lower = self.seconds[i], self.seconds[min(i + 1, len(self.seconds) - 1)]
        right = min(j + 1, len(upper) - 1)
        above = upper[j] + (upper[right] - upper[j]) * y
        below = lower[j] + (lower[right] - lower[j]) * y
        return above + (below - above) * x


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


@dataclass
class TimeCost(Cost):
    """Seconds of a forward pass, whichever channels are alive.

    ``scale * (sum of the layers) + rate * (elements of all other values) + constant``
    """

    layers: list[TimedLayer] = field(default_factory=list)
    elements: dict[fx.Node, int] = field(default_factory=dict)
    """How many there are for each channel of a value that no layer makes."""
    scale: float = 1.0
    rate: float = 0.0
    constant: float = 0.0

    def parts(self, sizes: Mapping[fx.Node, int]) -> tuple[float, float, float]:
        """The seconds of the layers alone, the other elements, and one."""
        others = sum(count * sizes[node] for node, count in self.elements.items())
        return sum(layer.seconds(sizes) for layer in self.layers), float(others), 1.0

    def _sum(
        self, sizes: Mapping[fx.Node, int], born: Iterable[fx.Node], groups: Mapping[Term, int] | None = None
    ) -> float:
        layers, elements, _ = self.parts(sizes)
        return self.scale * layers + self.rate * elements + self.constant


def measure_time(
    network: Network,
    widths: Mapping[str, int],
    families: Sequence[Sequence[int]],
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
        families: the layers that lose their channels together, by their numbers.
        engine: where it is to be fast.
        multiple: of channels, that the engine likes.
        couple: both sides of an addition keep the same channels.
    """
    whole = analyse_alive(network, _all_alive(widths), couple)
    layers = _time_layers(whole, _layers(whole), engine, multiple)
    weights = dict(zip(_WEIGHTS, (1.0, 0.0, 0.0), strict=True))
    cost = find_time(network, widths, couple, {"layers": layers, **weights})
    return {"layers": layers, **_fit(cost, families, engine, multiple)}


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
    whole = analyse_alive(network, _all_alive(widths), couple)
    layers = _layers(whole)
    tables = [LayerTimes(**measured["layers"][network.key(node)]) for node in layers]
    timed = [TimedLayer(_reads(n, whole), n, table) for n, table in zip(layers, tables, strict=True)]
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
    return TimeCost(
        *(network, couple, dict(widths), [], [], sizes, dependencies),
        layers=timed,
        elements=elements,
        scale=scale,
        rate=rate,
        constant=constant,
    )


_WEIGHTS = ("scale", "rate", "constant")


def time_removal(network: Network, alive: Alive, engine: Engine, couple: bool) -> tuple[float, float]:
    """The seconds of a network as it is, and of what is left of it."""
    whole = {name: np.ones(len(mask), bool) for name, mask in alive.items()}
    models = {name: _cut_alive(network, each, couple) for name, each in (("whole", whole), ("left", alive))}
    seconds = time_networks(models, network.example.map(_real), engine)
    return seconds["whole"], seconds["left"]


def _all_alive(widths: Mapping[str, int]) -> dict[str, np.ndarray]:
    return {name: np.ones(width, bool) for name, width in widths.items()}


def _layers(whole: Analysis) -> list[fx.Node]:
    """The layers that are timed by themselves."""
    return [node for node in whole.flows if _is_layer(node, whole)]


def _is_layer(node: fx.Node, whole: Analysis) -> bool:
    return node.op == "call_module" and isinstance(whole.module(node), nn.Linear | _ConvNd)


def _is_free(node: fx.Node, whole: Analysis) -> bool:
    """Whether a value is another one's memory, looked at in another way."""
    name = type(whole.module(node)).__name__ if node.op == "call_module" else name_of(node)
    return whole.rules[node].is_identity or name.lower() in _VIEWS


_VIEWS = {"flatten", "permute", "reshape", "squeeze", "transpose", "unflatten", "unsqueeze", "view"}


def _reads(node: fx.Node, whole: Analysis) -> fx.Node | None:
    """The value whose channels a layer reads, if they are its inputs one for one."""
    flow = whole.flows.get(source(node))
    return None if flow is None or flow.width != _inputs(whole.module(node)) else source(node)


def _inputs(layer: Any) -> int:
    return layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels


def _outputs(layer: Any) -> int:
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels


# Single layers ----------------------------------------------------------------------------------------------


def _time_layers(
    whole: Analysis, nodes: Sequence[fx.Node], engine: Engine, multiple: int
) -> dict[str, dict[str, Any]]:
    """The table of each layer; those that are alike are timed once, and once on each machine."""
    device = _device(whole.network)
    tables: dict[str, dict[str, Any]] = {}
    with timings_of(engine, device) as timings:
        for number, node in enumerate(nodes, 1):
            _show(f"timing layers in {engine}: {number} of {len(nodes)}", number == len(nodes))
            module, narrow_inputs = whole.module(node), _reads(node, whole) is not None
            outputs = _grid(_outputs(module), multiple)
            grouped = module.groups > 1 if isinstance(module, _ConvNd) else False
            inputs = _grid(_inputs(module), multiple) if narrow_inputs else [_inputs(module)]
            shape = whole.shape(source(node))
            axis = whole.flows[source(node)].axis if narrow_inputs else -1

            def time(i: int, o: int) -> float:
                layer, given = _narrow(module, i, o, shape, axis, device)  # noqa: B023
                what = _in_words(layer, given.shape)
                return timings.measure(what, lambda: time_layer(layer, given, engine))

            if grouped:  # inputs and outputs go together
                column = [time(_proportional(o, module), o) for o in outputs]
                inputs, seconds = [_inputs(module)], [column]
            else:
                seconds = [[time(i, o) for o in outputs] for i in inputs]
            tables[whole.network.key(node)] = {
                "multiple": multiple,
                "inputs": [*inputs],
                "outputs": [*outputs],
                "seconds": seconds,
            }
    return tables


def _grid(width: int, multiple: int) -> list[int]:
    """The numbers of channels at which a layer is timed.

    >>> _grid(64, 16), _grid(24, 16), _grid(6, 8)
    ([4, 8, 16, 32, 64], [4, 8, 16, 24], [2, 4, 6])
    """
    shares = (-(-round(share * width) // multiple) * multiple for share in _SHARES)
    found = {min(each, width) for each in (*shares, multiple, multiple // 2, multiple // 4, width)}
    return sorted(found - {0})


def _proportional(outputs: int, module: Any) -> int:
    return max(round(outputs * module.in_channels / module.out_channels), 1)


def _narrow(
    module: Any, inputs: int, outputs: int, shape: torch.Size, axis: int, device: torch.device
) -> tuple[nn.Module, torch.Tensor]:
    """A layer like this one of other widths, and something that it can take."""
    kind = module.weight.dtype
    options: dict[str, Any] = {"bias": module.bias is not None, "device": device, "dtype": kind}
    if isinstance(module, nn.Linear):
        layer: Any = nn.Linear(inputs, outputs, **options)
    else:
        groups = module.groups
        if groups > 1:  # as many in each group, or all by themselves
            groups = outputs if module.out_channels == groups else math.gcd(groups, inputs, outputs)
            inputs = outputs if module.in_channels == module.out_channels == module.groups else inputs
            inputs = -(-inputs // groups) * groups
        name = f"Conv{'Transpose' if module.transposed else ''}{len(module.kernel_size)}d"
        sizes = {each: getattr(module, each) for each in ("kernel_size", "stride", "padding", "dilation")}
        if module.transposed:
            sizes["output_padding"] = module.output_padding
        layer = getattr(nn, name)(inputs, outputs, groups=groups, **sizes, **options)
    given = list(shape)
    given[_channel_axis(module, shape)] = inputs
    return layer, torch.randn(given, device=device, dtype=kind)


def _channel_axis(module: Any, shape: torch.Size) -> int:
    return len(shape) - 1 if isinstance(module, nn.Linear) else len(shape) - len(module.kernel_size) - 1


def _in_words(layer: nn.Module, shape: Sequence[int]) -> str:
    return f"{layer!r}, {next(layer.parameters()).dtype}, on {'x'.join(map(str, shape))}"


# Whole networks ---------------------------------------------------------------------------------------------


def _fit(
    cost: TimeCost, families: Sequence[Sequence[int]], engine: Engine, multiple: int
) -> dict[str, float]:
    """How much the layers, the elements between them and the calls weigh, so that whole networks come out."""
    alive = {name: _cut_at_random(cost, families, shares, multiple) for name, shares in _NETWORKS.items()}
    sizes = {name: cost.kept(each) for name, each in alive.items()}
    with timings_of(engine, _device(cost.network)) as timings:
        keys = {name: _fingerprint(cost, each, sizes[name]) for name, each in alive.items()}
        if any(key not in timings for key in keys.values()):
            _show(f"timing {len(alive)} whole networks in {engine}", True)
            models = {name: _cut_alive(cost.network, each, cost.couple) for name, each in alive.items()}
            example = cost.network.example.map(_real)
            seconds = time_networks(models, example, engine)
            timings.add({keys[name]: own for name, own in seconds.items()})
        measured = np.array([timings[key] for key in keys.values()])
    parts = np.array([cost.parts(each) for each in sizes.values()])
    weights = _non_negative(parts / measured[:, None], np.ones(len(measured)))
    weights *= measured[0] / (parts[0] @ weights)  # the dense network is what all is compared with
    return dict(zip(_WEIGHTS, weights.tolist(), strict=True))


def _cut_at_random(
    cost: Cost, families: Sequence[Sequence[int]], shares: tuple[float, float], multiple: int
) -> dict[str, np.ndarray]:
    """A choice that keeps a share of each layer between these two; in multiples, where it has several."""
    random, names = np.random.default_rng(0), list(cost.widths)
    alive: dict[str, np.ndarray] = {}
    for family in families:
        width = cost.widths[names[family[0]]]
        step = multiple if width > multiple else 1
        number = min(max(-(-round(random.uniform(*shares) * width) // step), 1) * step, width)
        mask = random.permutation(width) < number
        alive |= {names[layer]: mask for layer in family}
    return {name: alive[name] for name in names}


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


def _device(network: Network) -> torch.device:
    found = next((tensor.device for tensor in network.model.parameters()), torch.device("cpu"))
    return torch.device("cpu") if found.type == "meta" else found


def _show(text: str, last: bool) -> None:
    """A line that is written over, where somebody looks; else the last one goes to the log."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"\r{text}", end="\n" if last else "", file=sys.stderr, flush=True)
    elif last:
        logging.getLogger("fadeout").info(text)
