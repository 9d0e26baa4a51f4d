"""Between which floats a threshold lies, narrowed down by counts.

Floats are spoken of by their ordinals (:mod:`.floats`). Counts are those of this process; ``sum_counts``
gives their sums over all processes, and is called once in a round for all intervals that are narrowed.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from fadeout.selection.floats import number_at, ordinal_of
from fadeout.selection.passes import Passes
from fadeout.torch_bridge.sharding import Shards

SumCounts = Callable[[list[int]], list[int]]

_NEAR = 64  # keys on each side of the threshold say how dense they are there


class Interval(ABC):
    """Where the k-th lowest of some keys is: its ordinal is from ``low`` to below ``high``.

    Attributes:
        below, upto: how many keys, on all processes, are below ``low`` and below ``high``.
        spacing: how many ordinals there are around it for each key, as far as that is known.
    """

    cuts = 32  # in a round
    most = 0  # keys that may be left in it

    def __init__(self, k: int, low: int, high: int, upto: int):
        self.k, self.low, self.high, self.below, self.upto, self.spacing = k, low, high, 0, upto, 1.0

    @property
    def inside(self) -> int:
        """How many keys are in it."""
        return self.upto - self.below

    @property
    def rank(self) -> int:
        """That of the k-th lowest among the keys in it, from 1."""
        return self.k - self.below

    @property
    def too_wide(self) -> bool:
        """Whether it has to be narrowed."""
        return self.inside > self.most and self.high - self.low > 1

    @abstractmethod
    def count(self, cuts: Sequence[int]) -> list[int]:
        """How many keys of this process are below each of a few ordinals."""

    def divide(self) -> list[int]:
        """Ordinals that divide it evenly."""
        step = max((self.high - self.low) // (self.cuts + 1), 1)
        return list(range(self.low + step, self.high, step)[: self.cuts])

    def learn(self, cuts: Sequence[int], counts: Sequence[int]) -> None:
        """Narrow it to what is between two cuts, by the counts below all of them."""
        for cut, count in zip(cuts, counts, strict=True):
            if count >= self.k:
                self.high, self.upto = cut, count
                return
            self.low, self.below = cut, count


def narrow(intervals: Sequence[Interval], sum_counts: SumCounts) -> None:
    """Narrow several intervals, round by round, until none is too wide."""
    while wide := [interval for interval in intervals if interval.too_wide]:
        cuts = [interval.divide() for interval in wide]
        counts = [interval.count(own) for interval, own in zip(wide, cuts, strict=True)]
        for interval, own, sums in zip(wide, cuts, sum_together(counts, sum_counts), strict=True):
            interval.learn(own, sums)


def sum_together(counts: Sequence[Sequence[int]], sum_counts: SumCounts) -> list[list[int]]:
    """Sum several lists of counts over all processes, at once.

    >>> sum_together([[1, 2], [3]], lambda counts: [2 * count for count in counts])
    [[2, 4], [6]]
    """
    sums = iter(sum_counts([count for own in counts for count in own]) if counts else ())
    return [[next(sums) for _ in own] for own in counts]


class Sorted(Interval):
    """Where the k-th lowest of few keys is; with no such k, an end of the interval.

    Args:
        keys: those of this process, in order.
        wide: their dtype; None for whole numbers, which are their own ordinals.
        sharded: other processes have more of them; otherwise the k-th is found at once.
    """

    def __init__(
        self,
        keys: np.ndarray,
        wide: torch.dtype | None,
        sharded: bool,
        k: int,
        low: int,
        high: int,
        upto: int,
    ):
        super().__init__(k, low, high, upto)
        self._keys, self._wide = keys, wide
        if k <= 0:
            self.high = low + 1
        elif k > upto:
            self.low = high - 1
        elif not sharded:
            self._find()

    def count(self, cuts: Sequence[int]) -> list[int]:
        numbers = cuts if self._wide is None else [number_at(cut, self._wide) for cut in cuts]
        return np.searchsorted(self._keys, np.array(numbers, self._keys.dtype)).tolist()

    def learn(self, cuts: Sequence[int], counts: Sequence[int]) -> None:
        if self.inside >= _NEAR:
            self.spacing = (self.high - self.low) / self.inside
        super().learn(cuts, counts)

    def _find(self) -> None:
        keys, at = self._keys, self.k - 1
        self.below, self.upto = (int(keys.searchsorted(keys[at], side)) for side in ("left", "right"))
        near = [max(at - _NEAR, 0), min(at + _NEAR, len(keys) - 1)]
        around = keys[[at, *near]].tolist()
        self.low, *ends = [ordinal_of(key, self._wide) for key in around] if self._wide else around
        self.high = self.low + 1
        # there may be a gap on one side: what fades leaves the neighbourhood
        spacing = [abs(end - self.low) / abs(n - at) for end, n in zip(ends, near, strict=True) if n != at]
        self.spacing = min(spacing, default=1.0)


Span = tuple[int, int]  # from one ordinal to below another
Probed = tuple[list[int], Callable[[int, int], None]]  # the counts of a process, and what takes their sums


class Bracket(Interval):
    """Where the threshold is, the k-th lowest key of many rows.

    Attributes:
        few: for each row the keys in the bracket and their positions, once they are collected.
    """

    cuts = 8  # in a pass over all rows

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
        return self.few is not None or (self.high - self.low == 1 and (zeros or self.upto == self.k))

    def count(self, cuts: Sequence[int]) -> list[int]:
        return self.passes.count(self._owned(self.rows), [self._number(cut) for cut in cuts])

    def probe(self, span: Span) -> Probed:
        """Count keys below what of a span is in the bracket, keys in it, and rows with a forbidden number."""
        low, high = (min(max(end, self.low), self.high) for end in span)
        most = self.most
        if high - low == 1:  # equal keys, however many: their positions decide, but not between zeros
            most = 0 if self.passes.magnitude and low == 0 else self.total
        ends = self._number(low), self._number(high)
        probes = self.passes.probe(self.rows, *ends, most)
        odd = [not p.peak < torch.inf if self.passes.magnitude else p.peak != p.peak for p in probes]
        own = self._owned(probes)
        counts = [sum(probe.below for probe in own), sum(probe.inside for probe in own), sum(odd)]

        def learn(below: int, inside: int) -> None:
            """Narrow the bracket by the sums of what was counted; collect what is few."""
            self.learn((low, high), [below, below + inside])
            if below < self.k <= below + inside <= below + most:
                self.few = self.passes.collect(self.rows, *ends, probes)

        return counts, learn

    def sample(self) -> np.ndarray:
        """Some keys of this process, in order."""
        # so many that about as many as may be collected lie between the two that are looked up in it
        size = 256 + (3 * min(self.total / 4096, 128)) ** 2
        step = math.ceil(self.total / size) | 1  # odd, so that it does not walk along columns
        return self._ordered([self.passes.key(row[::step]) for row in self._owned(self.rows)])

    def ends_in(self, sample: np.ndarray, size: int, stds: int) -> list[Sorted]:
        """The keys of a sample, ``size`` on all processes, so many stds of ranks around the threshold."""
        share = self.k / self.total
        spread = stds * math.sqrt(size * share * (1 - share)) + 2
        ranks = (round(share * size - spread), round(share * size + spread))
        return [Sorted(sample, self.passes.wide, self.shards.sharded, k, *self._all, size) for k in ranks]

    def threshold(self) -> Interval:
        """Where it is among the few that are left."""
        if self.few is None:  # all are equal
            return self
        keys = self._ordered([keys for keys, _ in self._owned(self.few)])
        where = self.rank, self.low, self.high, self.inside
        return Sorted(keys, self.passes.wide, self.shards.sharded, *where)

    def _ordered(self, keys: Sequence[Tensor]) -> np.ndarray:
        device = self.rows[0].device  # read from there once
        none = torch.empty(0, dtype=self.passes.wide, device=device)
        joined = keys[0] if len(keys) == 1 else torch.cat([none, *(one.to(device) for one in keys)])
        return np.sort(joined.cpu().numpy())

    def _owned(self, by_row: Sequence) -> list:
        return [one for number, one in enumerate(by_row) if self.shards.owns(number)]

    def _number(self, ordinal: int) -> float:
        return number_at(ordinal, self.passes.wide)


def look(spans: dict[Bracket, Span], sum_counts: SumCounts) -> None:
    """Probe a span of each bracket, and learn from that where its threshold is.

    Raises:
        FloatingPointError: on all processes, where a number is not allowed.
    """
    probed = [bracket.probe(span) for bracket, span in spans.items()]
    sums = sum_together([counts for counts, _ in probed], sum_counts)
    if any(odd for _, _, odd in sums):
        raise FloatingPointError("a number is not finite")
    for (_, learn), (below, inside, _) in zip(probed, sums, strict=True):
        learn(below, inside)


def find_thresholds(brackets: Sequence[Bracket], sum_counts: SumCounts) -> list[Interval]:
    """Look where samples have the thresholds; failing that, count below a few cuts, again and again."""
    _look_by_sample([bracket for bracket in brackets if bracket.too_wide], sum_counts)
    narrow(brackets, sum_counts)
    look({b: (b.low, b.high) for b in brackets if not b.found}, sum_counts)
    thresholds = [bracket.threshold() for bracket in brackets]
    narrow(thresholds, sum_counts)
    return thresholds


def _look_by_sample(brackets: Sequence[Bracket], sum_counts: SumCounts) -> None:
    """Look between two keys that have the threshold between them, if a sample is as good as most are."""
    samples = [bracket.sample() for bracket in brackets]
    sizes = sum_together([[len(sample)] for sample in samples], sum_counts)
    for stds in (2, 6):
        ends = {
            bracket: bracket.ends_in(sample, size, stds)
            for bracket, sample, (size,) in zip(brackets, samples, sizes, strict=True)
            if bracket.too_wide
        }
        narrow([end for both in ends.values() for end in both], sum_counts)
        spans = {bracket: (first.low, last.high) for bracket, (first, last) in ends.items()}
        look({b: (x, y) for b, (x, y) in spans.items() if b.low < y and x < b.high}, sum_counts)
