"""Between which numbers a threshold lies, narrowed down by counts.

Numbers are spoken of by their *places*: those of all numbers of a dtype in their order, so that neighbours
are one apart. A method that yields counts is sent their sums over all processes.
"""

import math
import struct
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fadeout.selection.passes import Passes
from fadeout.torch_bridge.sharding import Shards

_CUTS = 8  # in a pass over all scores: a bracket becomes so many times narrower, and one
_NEAR = 64  # numbers on each side of the threshold say how dense they are there
_FEW_CUTS = 32  # in a round over the few that are left


class Kth(NamedTuple):
    """The k-th lowest of some numbers.

    Attributes:
        value: as a place among all numbers.
        rank: the how many-th it is among those equal to it.
        equal: how many these are.
        spacing: how many places there are around it for each number.
    """

    value: int
    rank: int
    equal: int
    spacing: float = 1.0


def kth_lowest(
    ordered: np.ndarray, rank: int, low: int, high: int, upto: int, number: Callable[[int], float]
) -> Generator[list[int], list[int], Kth]:
    """The one of this rank among ``upto`` values that lie, as places, from ``low`` to below ``high``."""
    below, spacing = 0, 1.0
    while high - low > 1:
        if upto - below >= _NEAR:
            spacing = (high - low) / (upto - below)
        cuts = _even(low, high, _FEW_CUTS)
        at = np.array([number(cut) for cut in cuts], ordered.dtype)
        counts = yield np.searchsorted(ordered, at).tolist()
        low, high, below, upto = _narrower(low, high, below, upto, rank, cuts, counts)
    return Kth(low, rank - below, upto - below, spacing)


def _narrower(
    low: int, high: int, below: int, upto: int, k: int, cuts: Sequence[int], counts: Sequence[int]
) -> tuple[int, int, int, int]:
    """Between which cuts the k-th lowest lies, and how many there are below these two."""
    for cut, number in zip(cuts, counts, strict=True):
        if number >= k:
            return low, cut, below, number
        low, below = cut, number
    return low, high, below, upto


def _even(low: int, high: int, cuts: int) -> list[int]:
    step = max((high - low) // (cuts + 1), 1)
    return list(range(low + step, high, step)[:cuts])


class Bracket:
    """Between which numbers, as places, the threshold lies: from ``low`` to below ``high``."""

    def __init__(self, rows: list[Tensor], total: int, k: int, passes: Passes, shards: Shards):
        self.rows, self.total, self.k, self.passes, self.shards = rows, total, k, passes, shards
        self.most = max(4096, total // 128)  # that are collected
        lowest = 0 if passes.magnitude else place_of(-torch.inf, passes.wide)
        self.all = self.low, self.high = lowest, place_of(torch.inf, passes.wide) + 1
        self.below, self.upto = 0, total
        self._none = torch.empty(0, dtype=passes.wide, device=rows[0].device)
        self.few: list[tuple[Tensor, Tensor]] | None = None  # all that is inside, row by row, with positions

    @property
    def width(self) -> int:
        """Of the bracket, in numbers."""
        return self.high - self.low

    @property
    def inside(self) -> int:
        """How many are in the bracket."""
        return self.upto - self.below

    @property
    def found(self) -> bool:
        """Whether all that is in the bracket is known, or nothing has to be chosen from it."""
        zeros = self.passes.magnitude and self.low == 0
        return self.few is not None or (self.width == 1 and (zeros or self.upto == self.k))

    def look(self, low: int, high: int, most: int) -> Generator[list[int], list[int], None]:
        """Probe a part of it, and learn from that where the threshold is; up to ``most`` are collected."""
        low, high = max(low, self.low), min(high, self.high)
        ends = self.number(low), self.number(high)
        probe = self.passes.probe(self.rows, *ends, most)
        odd = [not f.peak < torch.inf if self.passes.magnitude else f.peak != f.peak for f in probe.facts]
        mine = [fact for number, fact in enumerate(probe.facts) if self.shards.owns(number)]
        sums = [sum(fact.below for fact in mine), sum(fact.inside for fact in mine), sum(odd)]
        below, inside, wrong = yield sums
        if wrong:
            raise FloatingPointError("a number is not finite")
        if below < self.k <= below + inside:
            self.low, self.below, self.high, self.upto = low, below, high, below + inside
            if inside <= most:
                self.few = self.passes.collect(self.rows, *ends, probe)
        elif self.k <= below:
            self.high, self.upto = low, below
        else:
            self.low, self.below = high, below + inside

    def narrow(self) -> Generator[list[int], list[int], None]:
        """Look where a sample has the threshold; failing that, count below a few numbers, again and again."""
        if self.inside > self.most:
            yield from self._look_by_sample()
        while not self.found and self.inside > self.most and self.width > 1:
            cuts = _even(self.low, self.high, _CUTS)
            counts = yield self.count(cuts)
            now = self.low, self.high, self.below, self.upto
            self.low, self.high, self.below, self.upto = _narrower(*now, self.k, cuts, counts)
        if not self.found:
            # equal ones, however many: their positions decide
            yield from self.look(self.low, self.high, self.total)

    def _look_by_sample(self) -> Generator[list[int], list[int], None]:
        """Look between the two places where the threshold is, if the sample is as good as most are."""
        # so many that about as many as may be collected lie between the two
        size = 256 + (3 * min(self.total / 4096, 128)) ** 2
        step = math.ceil(self.total / size) | 1  # odd, so that it does not walk along columns
        rows = [row[::step] for number, row in enumerate(self.rows) if self.shards.owns(number)]
        sample = self.ordered([self.passes.key(row) for row in rows])
        (size,) = yield [len(sample)]
        share, whole = self.k / self.total, (self.low, self.high)
        for deviations in (2, 6):
            spread = deviations * math.sqrt(size * share * (1 - share)) + 2
            ends = list(whole)
            for end, rank in enumerate((round(share * size - spread), round(share * size + spread))):
                if 0 < rank <= size:
                    ends[end] = (yield from self.kth(sample, rank, *self.all, size)).value + end
            if self.low < ends[1] and ends[0] < self.high:
                yield from self.look(ends[0], ends[1], self.most)
            if self.found or self.inside <= self.most:
                return

    def kth(
        self, ordered: np.ndarray, rank: int, low: int, high: int, upto: int
    ) -> Generator[list[int], list[int], Kth]:
        """The one of a rank among values that lie in a bracket."""
        if self.shards.sharded:
            return (yield from kth_lowest(ordered, rank, low, high, upto, self.number))
        value, near = ordered[rank - 1], [max(rank - 1 - _NEAR, 0), min(rank - 1 + _NEAR, len(ordered) - 1)]
        lower, upto = (int(ordered.searchsorted(value, side)) for side in ("left", "right"))
        place, *ends = (place_of(float(one), self.passes.wide) for one in (value, *ordered[near]))
        # there may be a gap on one side: what fades leaves the neighbourhood
        spacing = [
            abs(end - place) / abs(n - rank + 1) for end, n in zip(ends, near, strict=True) if n != rank - 1
        ]
        return Kth(place, rank - lower, upto - lower, min(spacing, default=1.0))

    def finish(self) -> Generator[list[int], list[int], Kth]:
        """The threshold, among the few that are left."""
        if self.few is None:
            return Kth(self.low, self.k - self.below, self.inside)
        rank = self.k - self.below
        few = self.ordered([values for n, (values, _) in enumerate(self.few) if self.shards.owns(n)])
        return (yield from self.kth(few, rank, self.low, self.high, self.inside))

    def ordered(self, values: Sequence[Tensor]) -> np.ndarray:
        """Values of several rows, in order."""
        device = self.rows[0].device
        together = values[0] if len(values) == 1 else torch.cat([self._none, *(v.to(device) for v in values)])
        return np.sort(together.cpu().numpy())

    def count(self, cuts: Sequence[int]) -> list[int]:
        """How many are below each of a few places."""
        rows = [row for number, row in enumerate(self.rows) if self.shards.owns(number)]
        return self.passes.count(rows, [self.number(cut) for cut in cuts])

    def number(self, place: int) -> float:
        return number_at(place, self.passes.wide)


def place_of(number: float, wide: torch.dtype) -> int:
    """The place of a number among all numbers of a dtype: its neighbours' are one below and one above."""
    kind, bits = ("<d", "<q") if wide == torch.float64 else ("<f", "<i")
    place = struct.unpack(bits, struct.pack(kind, number))[0]
    return place if place >= 0 else -(place & (2**63 - 1 if wide == torch.float64 else 2**31 - 1))


def number_at(place: int, wide: torch.dtype) -> float:
    """The number at a place; beyond infinity there is infinity."""
    kind, bits = ("<d", "<q") if wide == torch.float64 else ("<f", "<i")
    place = max(min(place, place_of(torch.inf, wide)), place_of(-torch.inf, wide))
    number = struct.unpack(kind, struct.pack(bits, abs(place)))[0]
    return number if place >= 0 else -number
