"""Between which floats a threshold lies, narrowed down by counts.

Floats are spoken of by their ordinals (:mod:`.floats`). Counts are those of this process; ``sum_counts``
gives their sums over all processes, and is called once in a round for all intervals that are narrowed.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fadeout.selection.floats import number_at, ordinal_of
from fadeout.selection.passes import Passes, Probe
from fadeout.torch_bridge.sharding import Shards

SumCounts = Callable[[list[int]], list[int]]

_NEAR = 64  # keys on each side of the threshold say how dense they are there


class Interval(ABC):
    """Where the k-th lowest of some keys lies: its ordinal is from ``low`` to below ``high``.

    Attributes:
        below, upto: how many keys, on all processes, are below ``low`` and below ``high``.
    """

    cuts_in_a_round: ClassVar[int]

    def __init__(self, k: int, low: int, high: int, upto: int):
        self.k, self.low, self.high, self.below, self.upto = k, low, high, 0, upto

    @property
    def width(self) -> int:
        """How many ordinals there are in it."""
        return self.high - self.low

    @property
    def inside(self) -> int:
        """How many keys there are in it."""
        return self.upto - self.below

    @property
    @abstractmethod
    def too_wide(self) -> bool:
        """Whether it has to be narrowed."""

    @abstractmethod
    def count(self, cuts: Sequence[int]) -> list[int]:
        """How many keys of this process are below each of a few ordinals."""

    def cuts(self) -> list[int]:
        """Ordinals that divide it evenly."""
        step = max(self.width // (self.cuts_in_a_round + 1), 1)
        return list(range(self.low + step, self.high, step)[: self.cuts_in_a_round])

    def narrow(self, cuts: Sequence[int], counts: Sequence[int]) -> None:
        """Narrow it to what is between two cuts, by the counts below all of them."""
        for cut, count in zip(cuts, counts, strict=True):
            if count >= self.k:
                self.high, self.upto = cut, count
                return
            self.low, self.below = cut, count


def narrow(intervals: Sequence[Interval], sum_counts: SumCounts) -> None:
    """Narrow several intervals, round by round, until none is too wide."""
    while wide := [interval for interval in intervals if interval.too_wide]:
        cuts = [interval.cuts() for interval in wide]
        counts = [interval.count(own) for interval, own in zip(wide, cuts, strict=True)]
        for interval, own, sums in zip(wide, cuts, sum_together(counts, sum_counts), strict=True):
            interval.narrow(own, sums)


def sum_together(counts: Sequence[Sequence[int]], sum_counts: SumCounts) -> list[list[int]]:
    """Sum several lists of counts over all processes, at once.

    >>> sum_together([[1, 2], [3]], lambda counts: [2 * count for count in counts])
    [[2, 4], [6]]
    """
    sums = iter(sum_counts([count for own in counts for count in own]) if counts else ())
    return [[next(sums) for _ in own] for own in counts]


class Kth(NamedTuple):
    """The k-th lowest of some keys.

    Attributes:
        ordinal: of its value.
        rank: its own among the keys equal to it, from 1.
        equal: how many these are.
        spacing: how many ordinals there are around it for each key.
    """

    ordinal: int
    rank: int
    equal: int
    spacing: float = 1.0


class Sorted(Interval):
    """Where the k-th lowest lies among few keys, each process having some of them in order.

    Args:
        keys: those of this process.
        k, low, high, upto: as in :class:`Interval`.
        wide: their dtype; None for whole numbers, which are their own ordinals.
        sharded: whether other processes have more of them.
    """

    cuts_in_a_round = 32

    def __init__(
        self,
        keys: np.ndarray,
        k: int,
        low: int,
        high: int,
        upto: int,
        wide: torch.dtype | None = None,
        sharded: bool = True,
    ):
        super().__init__(k, low, high, upto)
        self._keys, self._wide, self._sharded, self._spacing = keys, wide, sharded, 1.0
        self._beyond = not 0 < k <= upto

    @property
    def too_wide(self) -> bool:
        return self._sharded and self.width > 1 and not self._beyond

    def count(self, cuts: Sequence[int]) -> list[int]:
        numbers = cuts if self._wide is None else [number_at(cut, self._wide) for cut in cuts]
        return np.searchsorted(self._keys, np.array(numbers, self._keys.dtype)).tolist()

    def narrow(self, cuts: Sequence[int], counts: Sequence[int]) -> None:
        if self.inside >= _NEAR:
            self._spacing = self.width / self.inside
        super().narrow(cuts, counts)

    def kth(self) -> Kth:
        """The k-th lowest, after :func:`narrow`; where there is none, an end of the interval."""
        if self._beyond:
            return Kth(self.low if self.k <= 0 else self.high - 1, 0, 0)
        if self._sharded or self._wide is None:
            return Kth(self.low, self.k - self.below, self.inside, self._spacing)
        keys, at = self._keys, self.k - 1
        near = [max(at - _NEAR, 0), min(at + _NEAR, len(keys) - 1)]
        lower, upto = (int(keys.searchsorted(keys[at], side)) for side in ("left", "right"))
        ordinal, *ends = (ordinal_of(float(key), self._wide) for key in keys[[at, *near]])
        # there may be a gap on one side: what fades leaves the neighbourhood
        spacing = [abs(end - ordinal) / abs(n - at) for end, n in zip(ends, near, strict=True) if n != at]
        return Kth(ordinal, self.k - lower, upto - lower, min(spacing, default=1.0))


class Span(NamedTuple):
    """A part of a bracket, from one ordinal to below another, of which up to ``most`` keys are collected."""

    low: int
    high: int
    most: int


class Bracket(Interval):
    """Where the threshold lies: the k-th lowest key of many rows.

    Attributes:
        most: so many keys can be collected.
        few: for each row the keys in the bracket and their positions, once they are collected.
    """

    cuts_in_a_round = 8  # in a pass over all rows

    def __init__(self, rows: list[Tensor], total: int, k: int, passes: Passes, shards: Shards):
        lowest = 0 if passes.magnitude else ordinal_of(-torch.inf, passes.wide)
        super().__init__(k, lowest, ordinal_of(torch.inf, passes.wide) + 1, total)
        self.rows, self.total, self.passes, self.shards = rows, total, passes, shards
        self.most = max(4096, total // 128)
        self.few: list[tuple[Tensor, Tensor]] | None = None
        self._all = self.low, self.high

    @property
    def found(self) -> bool:
        """Whether all keys in the bracket are known, or none of them has to be chosen."""
        zeros = self.passes.magnitude and self.low == 0
        return self.few is not None or (self.width == 1 and (zeros or self.upto == self.k))

    @property
    def too_wide(self) -> bool:
        return not self.found and self.inside > self.most and self.width > 1

    def count(self, cuts: Sequence[int]) -> list[int]:
        return self.passes.count(self._owned(self.rows), [self._number(cut) for cut in cuts])

    def clamp(self, span: Span) -> Span:
        """What of a span is in the bracket."""
        low, high = (min(max(end, self.low), self.high) for end in span[:2])
        return Span(low, high, span.most)

    def probe(self, span: Span) -> tuple[Probe, list[int]]:
        """Probe a span, and count keys below it, keys in it, and rows with a number that is not allowed."""
        probe = self.passes.probe(self.rows, self._number(span.low), self._number(span.high), span.most)
        odd = [not f.peak < torch.inf if self.passes.magnitude else f.peak != f.peak for f in probe.facts]
        own = self._owned(probe.facts)
        return probe, [sum(fact.below for fact in own), sum(fact.inside for fact in own), sum(odd)]

    def learn(self, span: Span, probe: Probe, below: int, inside: int) -> None:
        """Narrow the bracket by what a probe, summed over all processes, found; collect what is few."""
        if below < self.k <= below + inside:
            self.low, self.below, self.high, self.upto = span.low, below, span.high, below + inside
            if inside <= span.most:
                ends = self._number(span.low), self._number(span.high)
                self.few = self.passes.collect(self.rows, *ends, probe)
        elif self.k <= below:
            self.high, self.upto = span.low, below
        else:
            self.low, self.below = span.high, below + inside

    def sample(self) -> np.ndarray:
        """A sample of this process's keys, in order."""
        # so many that about as many as may be collected lie between the two that are looked up in it
        size = 256 + (3 * min(self.total / 4096, 128)) ** 2
        step = math.ceil(self.total / size) | 1  # odd, so that it does not walk along columns
        return self._ordered([self.passes.key(row[::step]) for row in self._owned(self.rows)])

    def ends_in(self, sample: np.ndarray, size: int, stds: int) -> list[Sorted]:
        """The keys of a sample, of so many on all processes, on both sides of where the threshold should be.

        Args:
            stds: how far off, in standard deviations of the threshold's rank in a sample.
        """
        share = self.k / self.total
        spread = stds * math.sqrt(size * share * (1 - share)) + 2
        ranks = (round(share * size - spread), round(share * size + spread))
        return [self._sorted(sample, rank, *self._all, size) for rank in ranks]

    def sorted_few(self) -> Sorted:
        """The few keys that are left, one of which is the threshold."""
        where = self.k - self.below, self.low, self.high, self.inside
        if self.few is None:  # all are equal
            return Sorted(np.empty(0), *where)
        return self._sorted(self._ordered([keys for keys, _ in self._owned(self.few)]), *where)

    def _sorted(self, keys: np.ndarray, k: int, low: int, high: int, upto: int) -> Sorted:
        return Sorted(keys, k, low, high, upto, self.passes.wide, self.shards.sharded)

    def _ordered(self, keys: Sequence[Tensor]) -> np.ndarray:
        if len(keys) == 1:
            return np.sort(keys[0].cpu().numpy())
        device = self.rows[0].device  # read from there once
        none = torch.empty(0, dtype=self.passes.wide, device=device)
        return np.sort(torch.cat([none, *(one.to(device) for one in keys)]).cpu().numpy())

    def _owned(self, of_rows: Sequence) -> list:
        return [one for number, one in enumerate(of_rows) if self.shards.owns(number)]

    def _number(self, ordinal: int) -> float:
        return number_at(ordinal, self.passes.wide)


def look(brackets: Sequence[Bracket], spans: Sequence[Span], sum_counts: SumCounts) -> None:
    """Probe a span of each bracket, and learn from that where its threshold is.

    Raises:
        FloatingPointError: on all processes, where a number is not allowed.
    """
    spans = [bracket.clamp(span) for bracket, span in zip(brackets, spans, strict=True)]
    probes = [bracket.probe(span) for bracket, span in zip(brackets, spans, strict=True)]
    sums = sum_together([counts for _, counts in probes], sum_counts)
    if any(odd for _, _, odd in sums):
        raise FloatingPointError("a number is not finite")
    for bracket, span, (probe, _), (below, inside, _) in zip(brackets, spans, probes, sums, strict=True):
        bracket.learn(span, probe, below, inside)


def find_thresholds(brackets: Sequence[Bracket], sum_counts: SumCounts) -> list[Kth]:
    """Look where samples have the thresholds; failing that, count below a few cuts, again and again."""
    _look_by_sample([bracket for bracket in brackets if bracket.too_wide], sum_counts)
    narrow(brackets, sum_counts)
    # equal ones, however many: their positions decide
    rest = [bracket for bracket in brackets if not bracket.found]
    look(rest, [Span(bracket.low, bracket.high, bracket.total) for bracket in rest], sum_counts)
    few = [bracket.sorted_few() for bracket in brackets]
    narrow(few, sum_counts)
    return [one.kth() for one in few]


def _look_by_sample(brackets: Sequence[Bracket], sum_counts: SumCounts) -> None:
    """Look between two keys that have the threshold between them, if a sample is as good as most are."""
    samples = [bracket.sample() for bracket in brackets]
    sizes = [size for (size,) in sum_together([[len(sample)] for sample in samples], sum_counts)]
    for stds in (2, 6):
        ends = {
            bracket: bracket.ends_in(sample, size, stds)
            for bracket, sample, size in zip(brackets, samples, sizes, strict=True)
            if bracket.too_wide
        }
        narrow([end for both in ends.values() for end in both], sum_counts)
        spans = {
            b: Span(low.kth().ordinal, high.kth().ordinal + 1, b.most) for b, (low, high) in ends.items()
        }
        spans = {b: span for b, span in spans.items() if b.low < span.high and span.low < b.high}
        look(list(spans), list(spans.values()), sum_counts)
