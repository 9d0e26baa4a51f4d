"""Widths that hardware likes: kept channels in multiples of 8 or 16, and the target still exact.

One channel more than a processor's vectors hold can cost as much as fifteen. So widths are rounded up to
multiples, and more of the lowest channels go in exchange.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F

from fadeout._arguments import Count
from fadeout._timing import race
from fadeout.graph.analysis import analyse
from fadeout.graph.rules.base import Network
from fadeout.structures.channel_cost import Cost
from fadeout.structures.channel_deps import belong_together
from fadeout.torch_bridge.sharding import Layout

Multiple = Count | Literal["auto"]

_TOLERANCE = 0.01  # of the whole: so much more than asked may go, before a layer is left unrounded


class Rounding:
    """Chooses channels so that widths are multiples.

    Layers whose channels go together (both sides of an addition, if they are coupled, and those before and
    after a depthwise convolution) are one *family*: it is ranked by the highest score of each channel, and
    loses it in all its layers. A family that keeps ``k`` of its channels by rank keeps

        ``k``  below one multiple,  ``multiple * ceil(k / multiple)``  above it, or all of them.

    The least number of channels is taken that reaches the target with these widths; if that is more than a
    percentage point too many, the family that was last to lose some gets as many back as the target allows.

    Args:
        multiple: of which the widths are.
        families: the layers of each, by their numbers.
        names: of the layers.
        cost: of the network.
        min_channels: so many stay in each layer.
    """

    def __init__(
        self,
        multiple: int,
        families: Sequence[Sequence[int]],
        names: Sequence[str],
        cost: Cost,
        min_channels: int,
    ):
        self.multiple, self._families, self._names = multiple, families, names
        self._cost, self._min_channels = cost, min_channels
        self._last = 0  # how many channels the last choice took: the next takes nearly as many
        self.unrounded: tuple[str, ...] = ()
        """The layers that the last choice left unrounded, for the sake of the target."""

    def choose(self, ranked: Sequence[np.ndarray], wanted: float) -> dict[str, np.ndarray]:
        """What stays of each layer.

        Args:
            ranked: the scores of each layer's channels.
            wanted: how much must go, in the cost's unit.
        """
        scores = [np.max([ranked[layer] for layer in family], axis=0) for family in self._families]
        orders = [each.argsort(kind="stable") for each in scores]  # of each family, the lowest first
        held = [int(np.isneginf(each).sum()) for each in scores]  # such as a pruner keeps down
        widths = [len(each) for each in scores]
        # all channels that may go, lowest first; of a family the last ones must stay
        owner = np.repeat(np.arange(len(scores)), widths)
        free = np.concatenate(
            [
                lowest.argsort() < len(lowest) - self._min_channels for lowest in orders
            ]  # its rank in the family
        )
        order = np.concatenate(scores).argsort(kind="stable")
        order = owner[order[free[order]]]

        def kept(count: int) -> list[int]:
            gone = np.bincount(order[: max(count, sum(held))], minlength=len(widths)).tolist()
            return [
                min(_rounded(w - g, w, self.multiple), w - h)
                for g, w, h in zip(gone, widths, held, strict=True)
            ]

        def alive(numbers: Sequence[int]) -> dict[str, np.ndarray]:
            masks: dict[str, np.ndarray] = {}
            for family, lowest, number in zip(self._families, orders, numbers, strict=True):
                mask = np.zeros(len(lowest), bool)
                mask[lowest[len(lowest) - number :]] = True
                masks |= {self._names[layer]: mask for layer in family}
            return {name: masks[name] for name in self._names}

        def removed(numbers: Sequence[int]) -> float:
            return self._cost.total - self._cost.left(alive(numbers))

        self._last = first_true(lambda count: removed(kept(count)) >= wanted, len(order), self._last)
        chosen = kept(self._last)
        self.unrounded = ()
        if self._last and removed(chosen) - wanted > _TOLERANCE * self._cost.total:
            chosen = self._give_back(chosen, kept(self._last - 1), removed, wanted)
        return alive(chosen)

    def _give_back(self, chosen: list[int], before: list[int], removed: Any, wanted: float) -> list[int]:
        """The most channels of the family that was last to lose some with which the target is reached."""
        family = next(
            (i for i, (now, then) in enumerate(zip(chosen, before, strict=True)) if now != then), None
        )
        if family is None:
            return chosen

        def with_width(number: int) -> list[int]:
            return [number if i == family else width for i, width in enumerate(chosen)]

        more = before[family] - chosen[family]
        fewer = first_true(lambda less: removed(with_width(before[family] - less)) >= wanted, more, 0)
        if fewer < more:
            self.unrounded = tuple(self._names[layer] for layer in self._families[family])
        return with_width(before[family] - fewer)


def _rounded(number: int, width: int, multiple: int) -> int:
    """A number of channels, rounded up.

    >>> [_rounded(number, 20, 8) for number in (3, 8, 9, 16, 17, 20)]
    [3, 8, 16, 16, 20, 20]
    """
    return number if number < multiple else min(-(-number // multiple) * multiple, width)


def find_families(network: Network, widths: Mapping[str, int], couple: bool) -> list[list[int]]:
    """The layers that lose their channels together, by their numbers.

    Args:
        network: the traced network.
        widths: the number of channels of each layer that may lose some, by module name.
        couple: both sides of an addition keep the same channels.
    """
    names = list(widths)
    labels = belong_together(analyse(network, couple=couple, whole=True))
    nodes = {network.key(node): node for node in labels}
    modules = [node for node in labels if node.op == "call_module"]
    depthwise = {labels[node].tobytes() for node in modules if _is_depthwise(network.module(node))}
    families: dict[bytes, list[int]] = {}
    for number, name in enumerate(names):
        own = labels[nodes[name]].tobytes()
        families.setdefault(own if couple or own in depthwise else name.encode(), []).append(number)
    return list(families.values())


def _is_depthwise(module: Any) -> bool:
    return getattr(module, "groups", 1) > 1 and module.groups == module.in_channels == module.out_channels


def first_true(reached: Any, count: int, guess: int) -> int:
    """The smallest number from 0 to ``count`` for which a monotone condition holds, sought from a guess."""
    low, high, step = -1, count, 1  # the condition fails at low (or low is -1) and holds at high
    guess = min(max(guess, 0), count)
    while low + 1 < high:
        if reached(guess):
            high, guess = guess, guess - step
        else:
            low, guess = guess, guess + step
        step *= 2
        if not low < guess < high:
            guess = (low + high) // 2
    return high


def agreed_multiple(multiple: Multiple, layout: Layout) -> int:
    """The number itself, or what is measured; the larger where processes measure differently."""
    if multiple != "auto":
        return multiple
    (large,) = layout.any([best_multiple(torch.get_num_threads()) == 16])
    return 16 if large else 8


@cache
def best_multiple(threads: int) -> int:
    """8 or 16, whichever this machine likes: 16 where 24 channels take nearly as long as 32.

    Args:
        threads: of PyTorch; the answer of each number is remembered.
    """
    images = {width: torch.zeros(4, width, 16, 16, device="cpu") for width in (24, 32)}
    filters = {width: torch.zeros(width, width, 3, 3, device="cpu") for width in images}
    with torch.no_grad():
        timings = race(
            {
                str(width): lambda width=width: F.conv2d(images[width], filters[width], padding=1)
                for width in images
            }
        )
    return 8 if timings["24"].median <= _WORTH * timings["32"].median else 16


_WORTH = 0.8  # of the time of 32 channels: by their number 24 should take 0.5625
