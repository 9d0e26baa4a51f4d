"""Widths that hardware likes: kept channels in multiples of 8 or 16, and the target still exact.

One channel more than a processor's vectors hold can cost as much as fifteen. So widths are rounded up to
multiples, and more of the lowest channels go in exchange.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fadeout._arguments import Count
from fadeout.engines import Engine, time_networks, timings_of
from fadeout.graph.analysis import analyse
from fadeout.graph.example import Example
from fadeout.graph.network import Network
from fadeout.structures.channels.cost import dependencies_of
from fadeout.structures.channels.dependencies import belong_together
from fadeout.structures.channels.scores import lowest_first

Multiple = Count | Literal["auto"]

_TOLERANCE = 0.01  # of the whole: so much more than asked may go, before a layer is left unrounded


class Rounding:
    """Chooses channels so that widths are multiples.

    Layers whose channels go together (those before and after a depthwise convolution, and those of which any
    may keep a channel of a sum, since the sum's width counts too) are one *family*: it is ranked by the
    highest score of each channel, and loses it in all its layers. A family that keeps ``k`` of its channels
    by rank keeps

        ``multiple * ceil(k / multiple)``,  a half or a quarter of one multiple,  or all of them:

    other widths below one multiple take as long, a single channel often longer, and onnxruntime leaves its
    own layout of memory for them. (A family of no more than half a multiple may have any width.)

    The least number of channels is taken that reaches the target with these widths; if that is more than a
    percentage point too many, the family that was last to lose some gets as many back as the target allows,
    and if that does not help, where only whole multiples count, the others get a multiple more.

    Args:
        multiple: of which the widths are.
        families: the layers of each, by their numbers.
        names: of the layers.
        cost: of the network.
        min_channels: so many stay in each layer.
        meeting: families whose channels meet at additions, by their numbers: where the widths of all of them
            are no more than a multiple apart, they get the same, and nothing need be moved there.
    """

    def __init__(
        self,
        multiple: int,
        families: Sequence[Sequence[int]],
        names: Sequence[str],
        cost: Any,
        min_channels: int,
        meeting: Sequence[Sequence[int]] = (),
    ):
        self._below = multiple // 4, multiple // 2
        self._meeting = meeting
        self.multiple, self._families, self._names = multiple, families, names
        self._cost, self._min_channels = cost, min_channels
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
        order = np.repeat(np.arange(len(scores)), widths)[lowest_first(scores, self._min_channels)]

        def kept(count: int) -> list[int]:
            gone = np.bincount(order[: max(count, sum(held))], minlength=len(widths))
            numbers = self._level([w - g for g, w in zip(gone.tolist(), widths, strict=True)], widths)
            return [min(number, w - h) for number, w, h in zip(numbers, widths, held, strict=True)]

        def alive(numbers: Sequence[int]) -> dict[str, np.ndarray]:
            masks: dict[str, np.ndarray] = {}
            for family, lowest, number in zip(self._families, orders, numbers, strict=True):
                mask = np.zeros(len(lowest), bool)
                mask[lowest[len(lowest) - number :]] = True
                masks |= {self._names[layer]: mask for layer in family}
            return {name: masks[name] for name in self._names}

        def removed(numbers: Sequence[int]) -> float:
            return self._cost.total - self._cost.left(alive(numbers))

        # Where families meet, one channel less can make another wider, so that several numbers of channels
        # may just reach the target: a search that begins where the last one ended would find one or another
        reached = bisect_left(range(len(order)), True, key=lambda count: removed(kept(count)) >= wanted)
        chosen = kept(reached)
        self.unrounded = ()
        limit = wanted + _TOLERANCE * self._cost.total
        if reached and removed(chosen) > limit:
            chosen = self._give_back(chosen, kept(reached - 1), removed, wanted, limit)
            if removed(chosen) > limit:
                sorted_scores = [each[order] for each, order in zip(scores, orders, strict=True)]
                chosen = self._fill_up(chosen, sorted_scores, held, removed, wanted)
        return alive(chosen)

    def _give_back(
        self, chosen: list[int], before: list[int], removed: Any, wanted: float, limit: float
    ) -> list[int]:
        """Channels back for the families that were last to lose some, until no more than a limit goes.

        It is one family, or several that meet; each gets as many as the target allows.
        """
        for family in (i for i, (now, then) in enumerate(zip(chosen, before, strict=True)) if now < then):
            if removed(chosen) <= limit:
                break
            widths = range(before[family], chosen[family], -1)
            options = [[*chosen[:family], width, *chosen[family + 1 :]] for width in widths]
            fewer = bisect_left(options, True, key=lambda numbers: removed(numbers) >= wanted)
            if fewer < len(options):
                chosen = options[fewer]
                layers = self._families[family] if fewer else ()
                self.unrounded += tuple(self._names[layer] for layer in layers)
        return chosen

    def _rounded(self, number: int, width: int) -> int:
        """A number of channels, rounded up.

        >>> rounding = Rounding(8, [], [], None, 1)
        >>> [rounding._rounded(number, 20) for number in (0, 1, 3, 5, 8, 9, 17, 20)]
        [0, 2, 4, 8, 8, 16, 20, 20]
        >>> [rounding._rounded(number, 3) for number in (1, 2, 3)]
        [1, 2, 3]
        """
        if number == 0 or width <= self.multiple // 2:
            return number
        whole = -(-number // self.multiple) * self.multiple
        return min(next((one for one in self._below if one >= number), whole), width)

    def _level(self, numbers: Sequence[int], widths: Sequence[int]) -> list[int]:
        """The numbers of channels of all families, rounded up, and equal where families meet.

        >>> rounding = Rounding(8, [], [], None, 1, meeting=[[0, 1], [2, 3]])
        >>> rounding._level([8, 9, 15, 17], [32] * 4), rounding._level([7, 17, 3, 5], [32] * 4)
        ([16, 16, 16, 16], [8, 24, 4, 4])
        """
        rounded = [self._rounded(number, width) for number, width in zip(numbers, widths, strict=True)]
        for families in self._meeting:
            own = [rounded[one] for one in families]
            if max(own) - min(own) <= self.multiple:
                mean = -(-sum(numbers[one] for one in families) // len(families))
                for one in families:
                    rounded[one] = self._rounded(mean, widths[one])
        return rounded

    def least(self) -> dict[str, int]:
        """The fewest channels that each layer keeps."""
        return {
            self._names[layer]: self._rounded(self._min_channels, self._cost.widths[self._names[layer]])
            for family in self._families
            for layer in family
        }

    def _fill_up(
        self, chosen: list[int], scores: list[np.ndarray], held: list[int], removed: Any, wanted: float
    ) -> list[int]:
        """One multiple more for each family, that with the best channel first, where the target allows it."""
        best = {
            family: float(own[len(own) - number - 1])
            for family, (own, number) in enumerate(zip(scores, chosen, strict=True))
            if number < len(own) - held[family]
        }
        for family in sorted(best, key=lambda one: -best[one]):
            width = len(scores[family])
            more = min(self._rounded(chosen[family] + 1, width), width - held[family])
            wider = [more if i == family else number for i, number in enumerate(chosen)]
            if removed(wider) >= wanted:
                chosen = wider
        return chosen


def find_families(network: Network, widths: Mapping[str, int], couple: bool) -> list[list[int]]:
    """The layers that lose their channels together, by their numbers.

    Args:
        network: the traced network.
        widths: the number of channels of each layer that may lose some, by module name.
        couple: both sides of an addition keep the same channels.
    """
    names = list(widths)
    labels = belong_together(analyse(network, couple=couple, dead={}, whole=True))
    nodes = {network.key(node): node for node in labels}
    rules = network.rules
    depthwise = {labels[node].tobytes() for node in labels if rules[node].is_depthwise(network.module(node))}
    families: dict[bytes, list[int]] = {}
    for number, name in enumerate(names):
        own = labels[nodes[name]].tobytes()
        families.setdefault(own if couple or own in depthwise else name.encode(), []).append(number)
    family = {number: one for one in families.values() for number in one}
    dependencies = dependencies_of(network, labels, widths, couple)
    for layers in set() if dependencies is None else dependencies.shared():
        if len({widths[names[layer]] for layer in layers}) == 1:
            one = sorted({number for layer in layers for number in family[layer]})
            family |= dict.fromkeys(one, one)
    return list({id(one): one for one in family.values()}.values())


def find_meeting(
    network: Network, widths: Mapping[str, int], families: Sequence[Sequence[int]]
) -> list[list[int]]:
    """The families whose channels meet at additions, by their numbers: coupled they would be one."""
    coupled = enumerate(find_families(network, widths, couple=True))
    one = {layer: number for number, family in coupled for layer in family}
    found: dict[int, list[int]] = {}
    for number, family in enumerate(families):
        found.setdefault(one[family[0]], []).append(number)
    return [each for each in found.values() if len(each) > 1]


def multiple_for(multiple: Multiple, engine: Engine) -> int:
    """The number itself, or for ``"auto"`` 8 or 16, whichever the engine likes on this machine.

    It is 16 where 24 channels take nearly as long as 32 in a residual block, and so on: two of three pairs
    decide, since one may be mismeasured. Measured once on each machine.
    """
    if multiple != "auto":
        return multiple
    keys = {width: f"a block of {width} channels" for pair in _PAIRS for width in pair}
    with timings_of(engine, torch.device("cpu")) as timings:
        if any(key not in timings for key in keys.values()):
            example = Example((torch.zeros(4, 3, 16, 16, device="cpu"),))
            blocks = {key: _Block(width) for width, key in keys.items()}
            timings.update(time_networks(blocks, example, engine))
        seconds = {width: timings[key] for width, key in keys.items()}
    worth = [seconds[low] / seconds[high] <= (1 + (low / high) ** 2) / 2 for low, high in _PAIRS]
    return 8 if sum(worth) >= 2 else 16


_PAIRS = ((24, 32), (40, 48), (56, 64))  # by the operations, the first takes the square of their ratio


class _Block(nn.Module):
    """A stem and a residual block, in which widths that an engine does not like show."""

    def __init__(self, width: int):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, device="cpu")
        self.one, self.two = (nn.Conv2d(width, width, 3, padding=1, device="cpu") for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        return F.relu(x + self.two(F.relu(self.one(x)))).mean((2, 3))
