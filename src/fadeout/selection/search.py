"""The exact k lowest scores over many tensors.

The k-th lowest score is sought as a number. Counts of the scores below a few cuts, taken in one pass over
all of them, narrow a bracket down until few scores are in it; these are collected, and the threshold is one
of them. From one step of a training to the next it moves little, so a :class:`Finder` looks first around the
last one; where it jumps, a sample says where to look. So a single pass over all scores is nearly always
enough. Nothing as large as the scores is made (on a GPU a mask of one tensor).

Counts add up: where the tensors are shards, each process counts its own, and only sums of counts are
exchanged, in rounds that several searches share.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from fadeout.selection import passes as kernels
from fadeout.selection.bracket import Bracket, Sorted, Span, SumCounts, find_thresholds, look, narrow
from fadeout.selection.compiled import choose_passes
from fadeout.selection.floats import number_at
from fadeout.selection.passes import Passes
from fadeout.torch_bridge.sharding import ALONE, Shards

_AT_ONCE = 1 << 15  # so few numbers are looked at together: calls cost more than what they do


def lowest(scores: Sequence[Tensor], k: int) -> list[Tensor]:
    """Mark the ``k`` lowest of all the scores, and exactly ``k``.

    Equal scores are taken in the order of the tensors, then of the elements in each (row by row,
    whatever the memory layout), so that the answer is the same on every run. Scores compare as exact
    numbers: a narrower dtype is widened, never the wider one rounded. Tensors may lie on different
    devices; each mark lies with its score.

    Args:
        scores: tensors of any shapes, without NaN.
        k: how many to mark, between 0 and the number of elements.

    Returns:
        a boolean tensor for each score, True where the score is among the ``k`` lowest.

    >>> lowest([torch.tensor([3.0, 1.0]), torch.tensor([1.0, 2.0, 1.0])], 2)
    [tensor([False,  True]), tensor([ True, False, False])]
    """
    found = Finder()(scores, k)
    return [found.mask(number, score) for number, score in enumerate(scores)]


@dataclass(frozen=True)
class Lowest:
    """The k lowest of some tensors: those below a threshold, and some or all of those equal to it.

    Attributes:
        threshold: the k-th lowest number; infinity where all are taken, and minus that where none is.
        magnitude: the tensors are ranked by their absolute values.
        wide: the dtype in which they are compared, all of them, however narrow one is.
        ties: for each tensor the positions, row by row, of the chosen ones among those equal to the
            threshold; None where all of them are chosen.
    """

    threshold: float
    magnitude: bool
    wide: torch.dtype
    ties: tuple[Tensor, ...] | None = None

    def mask(self, number: int, tensor: Tensor) -> Tensor:
        """True where an element of a tensor, the one of this number, is among the lowest."""
        key = tensor.detach().abs() if self.magnitude else tensor.detach()
        key = key.to(self.wide)
        if self.ties is None:
            return key <= self.threshold
        mask = (key < self.threshold).contiguous()
        mask.view(-1)[self.ties[number]] = True
        return mask


class Finder:
    """Finds the k lowest, time and again: each search begins where the last one ended.

    What it remembers makes it faster, and never changes what it finds.

    Args:
        magnitude: rank by absolute values; a number that is not finite is then an error, and where the
            threshold is zero all zeros are taken, however many: which of them fade makes no difference.
        work: elements times searches, if known: :func:`.choose_passes` compiles where that pays.
        compile: yes or no, instead of that rule.
        shards: the tensors are the parts that this process has of larger ones.

    >>> finder = Finder(magnitude=True)
    >>> finder([torch.tensor([3.0, -1.0]), torch.tensor([-4.0, 2.0])], 2).threshold
    2.0
    """

    def __init__(
        self, magnitude: bool = False, work: float = 0.0, compile: bool | None = None, shards: Shards = ALONE
    ):
        self.magnitude, self._work, self._compile, self.shards = magnitude, work, compile, shards
        self._passes: Passes | None = None
        # ordinals: the last threshold, where the next one is expected, how far off such guesses are, and how
        # far around to look; not at all where a sample says more than the past
        self._last = self._guess = self._error = 0
        self._reach = -1
        self._near, self._apart = 0.0, 1 / 32  # of few numbers: the last one, and how far to look

    def passes(self, wide: torch.dtype, device: torch.device | str = "cpu") -> Passes:
        """The passes that it looks with, for numbers of a dtype; compiled, if so, for the first device."""
        if self._passes is None or self._passes.wide != wide:
            self._passes = choose_passes(self.magnitude, wide, self._work, self._compile, device)
        return self._passes

    def total(self, tensors: Sequence[Tensor]) -> int:
        """How many elements the tensors have, on all processes."""
        return self.shards.total or sum(tensor.numel() for tensor in tensors)

    def __call__(self, tensors: Sequence[Tensor], k: int) -> Lowest:
        """Find the ``k`` lowest.

        Raises:
            FloatingPointError: where an element is NaN, or with ``magnitude`` infinite.
        """
        return find_lowest([self], [tensors], [k], self.shards.sum)[0]

    def _start(self, tensors: Sequence[Tensor], k: int) -> Lowest | Bracket:
        """What is found without a pass, or where to look."""
        total, wide = self.total(tensors), _wide(tensors)
        if not 0 <= k <= total:
            raise ValueError(f"cannot take the {k} lowest of {total} scores")
        few = 0 < total <= _AT_ONCE * (1 if len(tensors) < 4 else 2)  # each tensor takes calls of its own
        if few and not self.shards.sharded and all(map(kernels.reads_are_free, tensors)):
            return self._find_at_once(tensors, k, wide)
        if not total or (k in (0, total) and not self.magnitude):
            return self._all_or_none(tensors, k, wide)
        rows = [kernels.flat(tensor.detach()) for tensor in tensors]
        return Bracket(rows, total, k, self.passes(wide, rows[0].device), self.shards)

    def _find_at_once(self, tensors: Sequence[Tensor], k: int, wide: torch.dtype) -> Lowest:
        """Few numbers are sooner looked at all together, without a sample."""
        keys = self._keys(tensors, wide)
        peak = keys.max()  # NaN, if there is one
        if peak != peak or (self.magnitude and peak == torch.inf):
            raise FloatingPointError("a number is not finite")
        if not 0 < k < len(keys):
            return self._all_or_none(tensors, k, wide)
        near, rank = self._around_last(keys, k)
        near.partition(rank - 1)
        value = self._near = float(near[rank - 1])
        found = Lowest(value, self.magnitude, wide)
        if rank == len(near) or value < near[rank:].min() or (self.magnitude and value == 0):
            return found
        equal = np.flatnonzero(keys == value)[: k - np.count_nonzero(keys < value)]
        starts = [0, *accumulate(tensor.numel() for tensor in tensors)]
        parts = [equal[(equal >= a) & (equal < b)] - a for a, b in pairwise(starts)]
        return replace(found, ties=tuple(map(torch.from_numpy, parts)))

    def _around_last(self, keys: np.ndarray, k: int) -> tuple[np.ndarray, int]:
        """A copy of the keys near the last threshold, and the rank of the k-th lowest among them.

        It is a copy of all keys on one side where that one is farther off.
        """
        reach = abs(self._near) * self._apart
        below, upto = keys < self._near - reach, keys <= self._near + reach
        first, last = int(np.count_nonzero(below)), int(np.count_nonzero(upto))
        if first < k <= last:
            if last - first > len(keys) // 16:
                self._apart /= 2
            return keys[np.flatnonzero(below != upto)], k - first
        self._apart = min(2 * self._apart, 0.5)
        return (keys[below], k) if k <= first else (keys[~upto], k - last)

    def _keys(self, tensors: Sequence[Tensor], wide: torch.dtype) -> np.ndarray:
        """What all elements are ranked by, row by row."""
        rows = (tensor if tensor.dtype == wide else tensor.to(wide) for tensor in tensors)
        parts = [(row.detach() if row.requires_grad else row).numpy().reshape(-1) for row in rows]
        keys = np.concatenate(parts)
        if self.magnitude:
            np.abs(keys, out=keys)
        return keys

    def _all_or_none(self, tensors: Sequence[Tensor], k: int, wide: torch.dtype) -> Lowest:
        if k:
            return Lowest(torch.inf, self.magnitude, wide)
        nowhere = tuple(torch.empty(0, dtype=torch.int64, device=t.device) for t in tensors)
        return Lowest(-torch.inf, self.magnitude, wide, nowhere)

    def _guess_span(self) -> Span:
        """Where to look first: around the threshold that is expected."""
        return self._guess - self._reach, self._guess + max(self._reach, 1)

    def _learn(self, found: int, spacing: float, bracket: Bracket) -> None:
        """Expect the threshold to move on as it did; look so far that it is inside, and few others are."""
        moved, warm = found - self._last, self._last != 0
        self._error = max(abs(found - self._guess), self._error * 15 // 16) if warm else 0
        reach = max(int(spacing * max(256, bracket.total // 8192)), 2 * self._error, 1)
        self._reach = reach if reach <= spacing * bracket.most / 4 else -1
        self._guess = found + (moved if warm and abs(moved) <= 2 * reach else 0)
        self._last = found
        if self.magnitude and found == 0:
            self._guess = self._reach = 0


def find_lowest(
    finders: Sequence[Finder], groups: Sequence[Sequence[Tensor]], ks: Sequence[int], sum_counts: SumCounts
) -> list[Lowest]:
    """Find the lowest of several groups of tensors, each with its finder: they share their rounds of sums.

    Args:
        finders: for each group the one that it had before.
        groups: those tensors that are ranked together.
        ks: how many of each group.
        sum_counts: gives the sums of whole numbers over all processes.

    Raises:
        FloatingPointError: where an element is NaN, or with ``magnitude`` infinite.

    >>> groups = [[torch.tensor([3.0, 1.0])], [torch.tensor([7.0, 9.0]), torch.tensor([8.0])]]
    >>> found = find_lowest([Finder(), Finder()], groups, [1, 2], sum_counts=list)
    >>> [lowest.threshold for lowest in found]
    [1.0, 8.0]
    """
    started = [finder._start(group, k) for finder, group, k in zip(finders, groups, ks, strict=True)]
    found = {n: lowest for n, lowest in enumerate(started) if isinstance(lowest, Lowest)}
    brackets = {n: bracket for n, bracket in enumerate(started) if isinstance(bracket, Bracket)}
    if not brackets:
        return list(found.values())
    spans = {}
    for n, bracket in brackets.items():
        if bracket.k in (0, bracket.total):  # whether all are finite
            found[n] = finders[n]._all_or_none(groups[n], ks[n], bracket.passes.wide)
            spans[bracket] = 0, 0
        elif finders[n]._reach >= 0:
            spans[bracket] = finders[n]._guess_span()
    look(spans, sum_counts)

    rest = [n for n in brackets if n not in found]
    ties: dict[int, _Ties] = {}
    thresholds = find_thresholds([brackets[n] for n in rest], sum_counts)
    for n, threshold in zip(rest, thresholds, strict=True):
        finder, bracket = finders[n], brackets[n]
        finder._learn(threshold.low, threshold.spacing, bracket)
        number = number_at(threshold.low, bracket.passes.wide)
        found[n] = Lowest(number, finder.magnitude, bracket.passes.wide)
        if threshold.rank < threshold.inside and not (finder.magnitude and number == 0):
            equal = [positions[keys == number] for keys, positions in bracket.few or []]
            ties[n] = _Ties(groups[n], equal, threshold.rank, finder.shards)
    narrow([own.last for own in ties.values()], sum_counts)
    return [replace(found[n], ties=ties[n].taken()) if n in ties else found[n] for n in range(len(groups))]


class _Ties:
    """The elements equal to a threshold, of which only the first are taken.

    Args:
        tensors: all of the group.
        equal: their positions in the memory of each tensor.
        number: how many are taken, on all processes.
        shards: of the tensors.
    """

    def __init__(self, tensors: Sequence[Tensor], equal: list[Tensor], number: int, shards: Shards):
        self._own = [kernels.by_rows(t, p).sort().values for t, p in zip(tensors, equal, strict=True)]
        self._among_all = [shards.positions(n, own, tensors) for n, own in enumerate(self._own)]
        none = self._own[0][:0]  # on the device of the first, from which they are read once
        counted = [p.to(none.device) for n, p in enumerate(self._among_all) if shards.owns(n)]
        positions = np.sort(torch.cat([none, *counted]).cpu().numpy())
        total = shards.total or sum(tensor.numel() for tensor in tensors)
        # the last that is taken, by its position among all elements of all processes
        self.last = Sorted(positions, None, shards.sharded, number, 0, total, total)

    def taken(self) -> tuple[Tensor, ...]:
        """The positions, row by row, of those that are taken in each tensor."""
        pairs = zip(self._own, self._among_all, strict=True)
        return tuple(own[among_all <= self.last.low] for own, among_all in pairs)


def _wide(tensors: Sequence[Tensor]) -> torch.dtype:
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
