"""The exact k lowest scores over many tensors.

The k-th lowest score is sought as a number. Counts of the scores below a few cuts, taken in one pass over
all of them, narrow a bracket down until few scores are in it; these are collected, and the threshold is one
of them. From one step of a training to the next it moves little, so a :class:`Finder` looks first around the
last one, and then a single pass is enough. Nothing as large as the scores is ever made.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fadeout import kernels
from fadeout.kernels import Passes, Probe, passes

_CUTS = 8  # in a pass, while the bracket is wide


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
        threshold: the k-th lowest number.
        magnitude: the tensors are ranked by their absolute values.
        ties: for each tensor the positions, row by row, of the chosen ones among those equal to the
            threshold; None where all of them are chosen.
    """

    threshold: float
    magnitude: bool
    ties: tuple[Tensor, ...] | None = None

    def mask(self, number: int, tensor: Tensor) -> Tensor:
        """True where an element of a tensor, the one of this number, is among the lowest."""
        key = tensor.detach().abs() if self.magnitude else tensor.detach()
        key = key.to(_wide([tensor, torch.tensor(self.threshold, dtype=torch.float64)]))
        if self.ties is None:
            return key <= self.threshold
        mask = (key < self.threshold).contiguous()
        mask.view(-1)[self.ties[number]] = True
        return mask


class Finder:
    """Finds the k lowest, time and again: each search begins where the last one ended.

    What it remembers makes it faster, and never changes what it finds.

    Args:
        magnitude: rank by absolute values; a number that is not finite is then an error.
        work: elements times searches, if known: :func:`~fadeout.kernels.passes` compiles where that pays.
        compile: yes or no, instead of that rule.

    >>> finder = Finder(magnitude=True)
    >>> finder([torch.tensor([3.0, -1.0]), torch.tensor([-4.0, 2.0])], 2).threshold
    2.0
    """

    def __init__(self, magnitude: bool = False, work: float = 0.0, compile: bool | None = None):
        self.magnitude, self._work, self._compile = magnitude, work, compile
        self._passes: Passes | None = None
        self._last = self._guess = self._reach = 0  # as places among all numbers: the last threshold, where
        # the next one is expected, and how far around it to look

    def passes(self, wide: torch.dtype) -> Passes:
        """The passes that it looks with, for numbers of a dtype."""
        if self._passes is None or self._passes.wide != wide:
            self._passes = passes(self.magnitude, wide, self._work, self._compile)
        return self._passes

    def __call__(self, tensors: Sequence[Tensor], k: int) -> Lowest:
        """Find the ``k`` lowest.

        Raises:
            FloatingPointError: where an element is NaN, or with ``magnitude`` infinite.
        """
        total = sum(tensor.numel() for tensor in tensors)
        if not 0 <= k <= total:
            raise ValueError(f"cannot take the {k} lowest of {total} scores")
        if k in (0, total):
            nowhere = tuple(torch.empty(0, dtype=torch.int64, device=t.device) for t in tensors)
            return Lowest(torch.inf if k else -torch.inf, self.magnitude, None if k else nowhere)
        wide = _wide(tensors)
        bracket = _Bracket([kernels.flat(t.detach()) for t in tensors], k, self.passes(wide))
        if self._reach:
            bracket.look(self._guess - self._reach, self._guess + self._reach)
        if not bracket.holds:
            bracket.narrow(self._reach)
        if bracket.probe is None:
            return Lowest(_number(bracket.low, wide), self.magnitude)
        return self._finish(tensors, bracket, bracket.probe)

    def _learn(self, place: int, bracket: "_Bracket") -> None:
        """Expect the threshold to move on as it did; look so far that few are inside, and it still is."""
        error, moved = abs(place - self._guess), place - self._last
        few = max(256, bracket.total // 4096)
        width = bracket.width * few // max(bracket.inside, 1)
        self._guess = place + moved if self._reach else place
        self._reach = max(width // 2, 2 * error if self._reach else 0, 1)
        self._reach = min(self._reach, max(bracket.width * bracket.most // max(4 * bracket.inside, 1), 1))
        self._last = place

    def _finish(self, tensors: Sequence[Tensor], bracket: "_Bracket", found: Probe) -> Lowest:
        """The threshold among the few that are left, and which of those equal to it are chosen."""
        assert found.values is not None
        rank = bracket.k - found.below
        threshold = found.values.kthvalue(rank).values
        facts = [threshold.double(), (found.values < threshold).sum(), (found.values == threshold).sum()]
        number, lower, equal = torch.stack(facts).tolist()
        self._learn(_place(number, bracket.passes.wide), bracket)
        if rank - lower == equal:
            return Lowest(number, self.magnitude)
        return Lowest(number, self.magnitude, _first(tensors, found, threshold, int(rank - lower)))


class _Bracket:
    """Between which numbers, as places, the threshold lies: from ``low`` to below ``high``."""

    def __init__(self, rows: list[Tensor], k: int, passes: Passes):
        self.rows, self.k, self.passes = rows, k, passes
        self.total = sum(len(row) for row in rows)
        self.most = max(4096, self.total // 128)  # that are collected
        self.low = 0 if passes.magnitude else _place(-torch.inf, passes.wide)
        self.high = _place(torch.inf, passes.wide) + 1
        self.below, self.upto = 0, self.total
        self.probe: Probe | None = None

    @property
    def width(self) -> int:
        """Of the bracket, in numbers."""
        return self.high - self.low

    @property
    def inside(self) -> int:
        """How many are in the bracket."""
        return self.upto - self.below

    @property
    def holds(self) -> bool:
        """Whether the last probe holds the threshold, and all that is near it."""
        found = self.probe
        return found is not None and found.values is not None and self.around(found)

    def look(self, low: int, high: int) -> None:
        """Probe a part of it, and learn from that where the threshold is."""
        low, high = max(low, self.low), min(high, self.high)
        ends = _number(low, self.passes.wide), _number(high, self.passes.wide)
        found = self.probe = self.passes.probe(self.rows, *ends, self.most)
        if found.peak != found.peak or (self.passes.magnitude and found.peak == torch.inf):
            raise FloatingPointError("a number is not finite")
        if self.around(found):
            self.low, self.below, self.high, self.upto = low, found.below, high, found.below + found.inside
        elif self.k <= found.below:
            self.high, self.upto = low, found.below
        else:
            self.low, self.below = high, found.below + found.inside

    def narrow(self, reach: int) -> None:
        """Count below a few numbers at a time, until few are between two of them, then collect these.

        There is nothing to collect where only equal numbers are left, and all of them are chosen.

        Args:
            reach: how far a probe looked that did not hold the threshold; the first counts are taken further
                and further away from there.
        """
        ladder = [reach * 8**rung for rung in range(1, _CUTS + 1)] if reach else []
        cuts = [self.low + rung for rung in ladder] if self.below else [self.high - r for r in ladder[::-1]]
        few = self.most
        while self.inside > few and self.width > 1:
            cuts = [cut for cut in cuts if self.low < cut < self.high] or self._even()
            counts = self.passes.count(self.rows, [_number(cut, self.passes.wide) for cut in cuts])
            for cut, count in zip(cuts, counts, strict=True):
                if count >= self.k:
                    self.high, self.upto = cut, count
                    break
                self.low, self.below = cut, count
            cuts = []
        self.probe = None
        if self.width > 1 or self.upto > self.k:
            self.most = self.total  # equal numbers, however many: their positions decide
            self.look(self.low, self.high)
            self.most = few

    def _even(self) -> list[int]:
        step = max(self.width // (_CUTS + 1), 1)
        return list(range(self.low + step, self.high, step)[:_CUTS])

    def around(self, found: Probe) -> bool:
        """Whether the threshold is where a probe looked."""
        return found.below < self.k <= found.below + found.inside


def _first(tensors: Sequence[Tensor], found: Probe, threshold: Tensor, needed: int) -> tuple[Tensor, ...]:
    """The positions of the first so many that equal the threshold, tensor by tensor."""
    assert found.values is not None
    ties, parts = [], found.values.split([len(own) for own in found.places])
    for tensor, own, values in zip(tensors, found.places, parts, strict=True):
        mine = own[(values == threshold).to(own.device)]
        ties.append(kernels.by_rows(tensor, mine).sort().values[:needed])
        needed -= len(ties[-1])
    return tuple(ties)


def _wide(tensors: Sequence[Tensor]) -> torch.dtype:
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def _place(number: float, wide: torch.dtype) -> int:
    """The place of a number among all numbers of a dtype: its neighbours' are one below and one above."""
    kind, bits = ("<d", "<q") if wide == torch.float64 else ("<f", "<i")
    place = struct.unpack(bits, struct.pack(kind, number))[0]
    return place if place >= 0 else -(place & (2**63 - 1 if wide == torch.float64 else 2**31 - 1))


def _number(place: int, wide: torch.dtype) -> float:
    """The number at a place; beyond infinity there is infinity."""
    kind, bits = ("<d", "<q") if wide == torch.float64 else ("<f", "<i")
    place = max(min(place, _place(torch.inf, wide)), _place(-torch.inf, wide))
    number = struct.unpack(kind, struct.pack(bits, abs(place)))[0]
    return number if place >= 0 else -number
