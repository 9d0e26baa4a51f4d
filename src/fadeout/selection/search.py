"""The exact k lowest scores over many tensors.

The k-th lowest score is sought as a number. Counts of the scores below a few cuts, taken in one pass over
all of them, narrow a bracket down until few scores are in it; these are collected, and the threshold is one
of them. From one step of a training to the next it moves little, so a :class:`Finder` looks first around the
last one; where it jumps, a sample says where to look. So a single pass over all scores is nearly always
enough. Nothing as large as the scores is made (on a GPU a mask of one tensor).

Counts add up: where the tensors are shards, each process counts its own, and a few sums go round. So a search
is a generator that yields counts and is sent their sums, and several searches share their rounds.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fadeout.selection import passes as kernels
from fadeout.selection.bracket import Bracket, Kth, kth_lowest, number_at
from fadeout.selection.passes import Passes, passes
from fadeout.torch_bridge.sharding import ALONE, Shards

Search = Generator[list[int], list[int], "Lowest"]


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
        work: elements times searches, if known: :func:`~.passes.passes` compiles where that pays.
        compile: yes or no, instead of that rule.
        shards: the tensors are the parts that this process has of larger ones.

    >>> finder = Finder(magnitude=True)
    >>> finder([torch.tensor([3.0, -1.0]), torch.tensor([-4.0, 2.0])], 2).threshold
    2.0
    """

    def __init__(
        self,
        magnitude: bool = False,
        work: float = 0.0,
        compile: bool | None = None,
        shards: Shards = ALONE,
    ):
        self.magnitude, self._work, self._compile, self._shards = magnitude, work, compile, shards
        self._passes: Passes | None = None
        self._device: torch.device | str = "cpu"
        # as places among all numbers: the last threshold, where the next one is expected, how far off such
        # guesses are, and how far around to look; not at all where a sample says more than the past
        self._last = self._guess = self._error = 0
        self._reach = -1
        # searches without a guess, the more the more guesses failed: some thresholds jump all the time
        self._rest, self._failed = 0, 0

    def passes(self, wide: torch.dtype) -> Passes:
        """The passes that it looks with, for numbers of a dtype."""
        if self._passes is None or self._passes.wide != wide:
            self._passes = passes(self.magnitude, wide, self._work, self._compile, self._device)
        return self._passes

    def __call__(self, tensors: Sequence[Tensor], k: int) -> Lowest:
        """Find the ``k`` lowest.

        Raises:
            FloatingPointError: where an element is NaN, or with ``magnitude`` infinite.
        """
        return together([self.search(tensors, k)], self._shards.sum)[0]

    def search(self, tensors: Sequence[Tensor], k: int) -> Search:
        """The same, for :func:`together`."""
        total = self._shards.total or sum(tensor.numel() for tensor in tensors)
        if not 0 <= k <= total:
            raise ValueError(f"cannot take the {k} lowest of {total} scores")
        if not total:
            return self._all_or_none(tensors, k)
        wide = _wide(tensors)
        if total <= _JOINED and not self._shards.sharded and all(map(kernels.reads_are_free, tensors)):
            return (yield from self._at_once(tensors, k, wide))
        rows = _rows(tensors, self._shards)
        self._device = rows[0].device
        bracket = Bracket(rows, total, k, self.passes(wide), self._shards)
        if k in (0, total):
            if self.magnitude:
                yield from bracket.look(0, 0, 0)  # whether all are finite
            return self._all_or_none(tensors, k)
        if self._reach >= 0 and not self._rest:
            zeros = self.magnitude and self._guess == 0
            low, high = self._guess - self._reach, self._guess + max(self._reach, 1)
            yield from bracket.look(low, high, 0 if zeros else bracket.most)
            self._failed = 0 if bracket.found else min(self._failed + 1, 4)
            self._rest = 0 if bracket.found else 2**self._failed
        self._rest = max(self._rest - 1, 0)
        if not bracket.found:
            yield from bracket.narrow()
        last = yield from bracket.finish()
        self._learn(last, bracket)
        number = number_at(last.value, wide)
        if last.rank == last.equal or (self.magnitude and number == 0):
            return Lowest(number, self.magnitude, wide)
        ties = yield from self._first(tensors, bracket.few or [], number, last)
        return Lowest(number, self.magnitude, wide, ties)

    def _at_once(self, tensors: Sequence[Tensor], k: int, wide: torch.dtype) -> Search:
        """Few numbers are sooner looked at all together, without a guess or a sample."""
        keys = self._keys(tensors, wide)
        some = 0 < k < len(keys)
        if some:
            keys.partition(k - 1)
        above = keys[k:] if some else keys
        peak = above.max()  # NaN, if there is one
        if peak != peak or (self.magnitude and peak == torch.inf):
            raise FloatingPointError("a number is not finite")
        if not some:
            return self._all_or_none(tensors, k)
        value = float(keys[k - 1])
        if value < above.min() or (self.magnitude and value == 0):
            return Lowest(value, self.magnitude, wide)
        keys = self._keys(tensors, wide)
        places = np.flatnonzero(keys == value)
        few = [(torch.from_numpy(keys[places]), torch.from_numpy(places))]
        kth = Kth(0, k - int(np.count_nonzero(keys < value)), len(places))
        ties = yield from self._first(tensors, few, value, kth)
        return Lowest(value, self.magnitude, wide, ties)

    def _all_or_none(self, tensors: Sequence[Tensor], k: int) -> Lowest:
        if k:
            return Lowest(torch.inf, self.magnitude, _wide(tensors))
        nowhere = tuple(torch.empty(0, dtype=torch.int64, device=t.device) for t in tensors)
        return Lowest(-torch.inf, self.magnitude, _wide(tensors), nowhere)

    def _keys(self, tensors: Sequence[Tensor], wide: torch.dtype) -> np.ndarray:
        """What all elements are ranked by."""
        rows = []
        for tensor in tensors:
            row = tensor if tensor.is_contiguous() else kernels.flat(tensor)
            row = row if row.dtype == wide else row.to(wide)
            rows.append((row.detach() if row.requires_grad else row).numpy().reshape(-1))
        keys = np.concatenate(rows)
        if self.magnitude:
            np.abs(keys, out=keys)
        return keys

    def _learn(self, found: "Kth", bracket: "Bracket") -> None:
        """Expect the threshold to move on as it did; look so far that it is inside, and few others are."""
        place, moved, warm = found.value, found.value - self._last, self._last != 0
        self._error = max(abs(place - self._guess), self._error * 15 // 16) if warm else 0
        reach = max(int(found.spacing * max(256, bracket.total // 8192)), 2 * self._error, 1)
        self._reach = reach if reach <= found.spacing * bracket.most / 4 else -1
        self._guess = place + moved if warm and abs(moved) <= 2 * reach else place
        self._last = place
        if self.magnitude and place == 0:
            self._guess = self._reach = 0

    def _first(
        self, tensors: Sequence[Tensor], few: list[tuple[Tensor, Tensor]], number: float, kth: "Kth"
    ) -> Generator[list[int], list[int], tuple[Tensor, ...]]:
        """The positions of the first so many that equal the threshold, tensor by tensor."""
        found = [places[values == number] for values, places in few]
        if len(found) < len(tensors):  # they were joined
            ends = torch.tensor([tensor.numel() for tensor in tensors]).cumsum(0).tolist()
            found = [
                found[0][(found[0] >= end - t.numel()) & (found[0] < end)] - end + t.numel()
                for t, end in zip(tensors, ends, strict=True)
            ]
        own = [kernels.by_rows(t, places).sort().values for t, places in zip(tensors, found, strict=True)]
        device = own[0].device
        positions = [self._shards.positions(i, places, tensors).to(device) for i, places in enumerate(own)]
        counted = torch.cat([p for i, p in enumerate(positions) if self._shards.owns(i)] or [own[0][:0]])
        if self._shards.sharded:
            ordered = np.sort(counted.cpu().numpy())
            last = (
                yield from kth_lowest(ordered, kth.rank, 0, self._shards.total, kth.equal, lambda p: p)
            ).value
        else:
            last = int(counted[kth.rank - 1])  # the tensors follow one another
        return tuple(mine[p.to(mine.device) <= last] for mine, p in zip(own, positions, strict=True))


def together(searches: Sequence[Search], sum: Callable[[list[int]], list[int]]) -> list[Lowest]:
    """The results of several searches: in each round the counts of all of them are summed at once.

    Args:
        searches: from :meth:`Finder.search`.
        sum: of numbers over all processes.
    """
    found: dict[int, Lowest] = {}
    answers: dict[int, list[int] | None] = dict.fromkeys(range(len(searches)))
    while answers:
        asked = {}
        for number, answer in answers.items():
            try:
                asked[number] = searches[number].send(answer)  # pyright: ignore[reportArgumentType]
            except StopIteration as end:
                found[number] = end.value
        sums = iter(sum([count for counts in asked.values() for count in counts]) if asked else ())
        answers = {number: [next(sums) for _ in counts] for number, counts in asked.items()}
    return [found[number] for number in range(len(searches))]


_JOINED = 1 << 18  # so few numbers are looked at together: calls cost more than what they do


def _rows(tensors: Sequence[Tensor], shards: Shards) -> list[Tensor]:
    """The tensors in the order of their memory."""
    rows = [kernels.flat(tensor.detach()) for tensor in tensors]
    alike = len({(row.dtype, row.device) for row in rows}) == 1
    if len(rows) > 1 and alike and not shards.sharded and sum(map(len, rows)) <= _JOINED:
        return [torch.cat(rows)]
    return rows


def _wide(tensors: Sequence[Tensor]) -> torch.dtype:
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
