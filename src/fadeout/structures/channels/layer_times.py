"""What single layers take at each width: a table for each convolution and each linear layer.

They are timed at a few widths, on this machine; between these a width costs what the next multiple does that
the processor likes.
"""

import logging
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.nn.modules.conv import _ConvNd

from fadeout.engines import Engine, device_of, time_layer, timings_of
from fadeout.graph.analysis import Analysis
from fadeout.graph.network import Network
from fadeout.graph.rules.calls import source

_SHARES = (1.0, 0.5, 0.25)  # of a layer's width, at which it is timed


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

    @cached_property
    def _rising(self) -> list[list[float]]:
        """The seconds: more channels never take less time."""
        return np.maximum.accumulate(np.maximum.accumulate(np.array(self.seconds), 0), 1).tolist()

    @cached_property
    def _places(self) -> list[list[float]]:
        return [self._place(widths) for widths in (self.inputs, self.outputs)]

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
        upper, lower = self._rising[i], self._rising[min(i + 1, len(self._rising) - 1)]
        right = min(j + 1, len(upper) - 1)
        above = upper[j] + (upper[right] - upper[j]) * y
        below = lower[j] + (lower[right] - lower[j]) * y
        return above + (below - above) * x


def time_layers(
    whole: Analysis, nodes: Sequence[fx.Node], engine: Engine, multiple: int
) -> dict[str, dict[str, Any]]:
    """The table of each layer; those that are alike are timed once, and once on each machine."""
    device = real_device(whole.network)
    tables: dict[str, dict[str, Any]] = {}
    with timings_of(engine, device) as timings:
        for number, node in enumerate(nodes, 1):
            show_progress(f"timing layers in {engine}: {number} of {len(nodes)}", number == len(nodes))
            module, narrow_inputs = whole.module(node), reads(node, whole) is not None
            outputs = _grid(_outputs(module), multiple)
            grouped = module.groups > 1 if isinstance(module, _ConvNd) else False
            inputs = _grid(_inputs(module), multiple) if narrow_inputs else [_inputs(module)]
            shape = whole.shape(source(node))

            def time(i: int, o: int) -> float:
                layer, given = _narrow(module, i, o, shape, device)  # noqa: B023
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


def reads(node: fx.Node, whole: Analysis) -> fx.Node | None:
    """The value whose channels a layer reads, if they are its inputs one for one."""
    flow = whole.flows.get(source(node))
    return None if flow is None or flow.width != _inputs(whole.module(node)) else source(node)


def _inputs(layer: Any) -> int:
    return layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels


def _outputs(layer: Any) -> int:
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels


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
    module: Any, inputs: int, outputs: int, shape: torch.Size, device: torch.device
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


def real_device(network: Network) -> torch.device:
    """Where a network is timed."""
    found = device_of(network.model)
    return torch.device("cpu") if found.type == "meta" else found


def show_progress(text: str, last: bool) -> None:
    """A line that is written over, where somebody looks; else the last one goes to the log."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"\r{text}", end="\n" if last else "", file=sys.stderr, flush=True)
    elif last:
        logging.getLogger("fadeout").info(text)
