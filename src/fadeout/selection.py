"""The exact k lowest scores over many tensors.

The k-th lowest score is sought as a number: counts of the scores below a few cuts, each taken in one pass over
all of them, narrow a bracket down until few scores are in it; these are collected and sorted. From one step of a
training to the next that number moves little, so a :class:`Finder` begins with cuts around the last one, and
a single pass is enough. Nothing as large as the scores is ever made.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fadeout import kernels

_CUTS = 8  # in a pass, while the bracket is wide
_LOWEST, _HIGHEST = -torch.inf, torch.inf


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
        magnitude: rank by absolute values.

    >>> finder = Finder(magnitude=True)
    >>> finder([torch.tensor([3.0, -1.0]), torch.tensor([-4.0, 2.0])], 2).threshold
    2.0
    """

    def __init__(self, magnitude: bool = False):
        self.magnitude = magnitude
        self._centre, self._reach = 0, 0  # the last threshold, and how far around it to look, as places

    def __call__(self, tensors: Sequence[Tensor], k: int) -> Lowest:
        """Find the ``k`` lowest.

        Raises:
            FloatingPointError: where an element is NaN, or with ``magnitude`` infinite.
        """
        total = sum(tensor.numel() for tensor in tensors)
        if not 0 <= k <= total:
            raise ValueError(f"cannot take the {k} lowest of {total} scores")
        if k in (0, total):
            return Lowest(_HIGHEST if k else _LOWEST, self.magnitude, None if k else _nowhere(tensors))
        wide = _wide(tensors)
        bracket = _Bracket(tensors, k, wide, self.magnitude)
        bracket.narrow(self._cuts(wide))
        found = bracket.finish()
        self._learn(_place(found.threshold, wide), bracket)
        return found

    def _cuts(self, wide: torch.dtype) -> list[int]:
        if not self._reach:
            return []
        return [self._centre + step * self._reach for step in (-8, -1, 1, 8)]

    def _learn(self, place: int, bracket: "_Bracket") -> None:
        """Aim for a bracket that holds few scores, and still the next threshold."""
        wanted = max(256, bracket.total // 4096)
        if not self._reach:
            self._reach = max(bracket.width // 2, 1)
        elif abs(place - self._centre) > self._reach:
            self._reach *= 8
        else:
            ratio = wanted / max(bracket.inside, 1)
            self._reach = max(1, int(self._reach * min(max(ratio, 0.5), 2)))
        self._reach = min(self._reach, 1 << 28)
        self._centre = place


class _Bracket:
    """Between which two numbers the threshold lies, and how many scores are below each of them."""

    def __init__(self, tensors: Sequence[Tensor], k: int, wide: torch.dtype, magnitude: bool):
        self.k, self.wide, self.magnitude = k, wide, magnitude
        self.tensors = tensors
        self.total = sum(tensor.numel() for tensor in tensors)
        self.flats = [kernels.flat(tensor.detach()) for tensor in tensors]
        # as places: low <= threshold < high
        self.low = 0 if magnitude else _place(_LOWEST, wide)
        self.high = _place(_HIGHEST, wide) + (0 if magnitude else 1)
        self.below, self.upto = 0, self.total
        self.counts: list[list[int]] | None = None

    @property
    def inside(self) -> int:
        return self.upto - self.below

    @property
    def width(self) -> int:
        return self.high - self.low

    def narrow(self, cuts: list[int]) -> None:
        """Count below cuts until few scores are between two of them, or nothing but equal ones."""
        few = max(4096, self.total // 128)
        while self.inside > few and self.width > 1:
            inner = [cut for cut in cuts if self.low < cut < self.high] or self._even()
            values = [_number(cut, self.wide) for cut in inner]
            found = self._count([*values, _HIGHEST] if self.magnitude else values)
            if self.magnitude and found[-1] != self.total:
                raise FloatingPointError("a weight is NaN or infinite")
            for cut, count in zip(inner, found, strict=False):
                if count < self.k:
                    self.low, self.below = cut, count
                else:
                    self.high, self.upto = cut, count
                    break
            cuts = []

    def finish(self) -> Lowest:
        """The threshold itself, and which of those equal to it are chosen."""
        if self.width == 1 and self.upto == self.k:
            return Lowest(_number(self.low, self.wide), self.magnitude)
        low, high = _number(self.low, self.wide), _number(self.high, self.wide)
        values, places = kernels.between(self.flats, low, high, self.wide, self.magnitude)
        if len(values) != self.inside:
            raise FloatingPointError("a score is NaN")
        ordered = values.sort().values
        threshold = ordered[self.k - self.below - 1]
        facts = torch.stack([threshold.double(), (values < threshold).sum(), (values == threshold).sum()])
        number, lower, equal = facts.tolist()
        needed = self.k - self.below - int(lower)
        if needed == equal:
            return Lowest(number, self.magnitude)
        return Lowest(number, self.magnitude, self._first(needed, values == threshold, places))

    def _count(self, values: list[float]) -> list[int]:
        return kernels.count(self.flats, values, self.wide, self.magnitude)

    def _even(self) -> list[int]:
        step = max(self.width // (_CUTS + 1), 1)
        return [c for c in range(self.low + step, self.high, step)][:_CUTS]

    def _first(self, needed: int, equal: Tensor, places: list[Tensor]) -> tuple[Tensor, ...]:
        """The positions of the first so many ties, tensor by tensor."""
        ties, begun = [], 0
        for tensor, own in zip(self.tensors, places, strict=True):
            mine = own[equal[begun : begun + len(own)].to(own.device)]
            begun += len(own)
            mine = kernels.by_rows(tensor, mine).sort().values[: max(needed, 0)]
            needed -= len(mine)
            ties.append(mine)
        return tuple(ties)


def _nowhere(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(torch.empty(0, dtype=torch.int64, device=tensor.device) for tensor in tensors)


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
    place = max(min(place, _place(_HIGHEST, wide)), _place(_LOWEST, wide))
    number = struct.unpack(kind, struct.pack(bits, abs(place)))[0]
    return number if place >= 0 else -number
