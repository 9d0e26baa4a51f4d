"""Passes over weights in plain PyTorch, in pieces, so that nothing as large as the weights is made.

Those of :mod:`.compiled` give the same numbers to the last bit, for a parameter may be whole in one process
and in small parts in others. A *row* is a tensor in the order of its memory, a *key* what its elements are
ranked by, a *position* counts elements from 0.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fadeout.selection.floats import before

_SMALL = 1 << 16  # elements, which a core's own cache holds several times


def flat(tensor: Tensor) -> Tensor:
    """A tensor as one row in the order of its memory; a view, where the memory has no holes."""
    return tensor.view(-1) if tensor.is_contiguous() else tensor.permute(_order(tensor)).reshape(-1)


def by_rows(tensor: Tensor, positions: Tensor) -> Tensor:
    """Positions in :func:`flat` as positions row by row, whatever the memory layout.

    >>> by_rows(torch.zeros(2, 3).t(), torch.tensor([1]))  # the second in memory begins the second row
    tensor([2])
    """
    if tensor.is_contiguous():
        return positions
    order, strides = _order(tensor), torch.empty(tensor.shape, device="meta").stride()
    indices = torch.unravel_index(positions, [tensor.shape[dimension] for dimension in order])
    steps = [index * strides[dimension] for index, dimension in zip(indices, order, strict=True)]
    return torch.stack(steps).sum(0)


class Probe(NamedTuple):
    """What a pass found in a row.

    Attributes:
        below, inside: how many keys are below the bracket, and how many in it.
        peak: the highest key; NaN if one is.
        keys: those in the bracket and their positions, where they were collected in passing.
    """

    below: int
    inside: int
    peak: float
    keys: tuple[Tensor, Tensor] | None


Counts = Tensor | list[float]  # of a piece: keys below the bracket, keys below its end, and the peak
Keys = tuple[np.ndarray, np.ndarray]  # and their positions


class Passes:
    """The passes in plain PyTorch.

    Args:
        magnitude: keys are magnitudes; otherwise the numbers themselves.
        wide: the dtype in which keys are compared.

    >>> passes, row = Passes(magnitude=True), torch.tensor([1.0, -2.0, 3.0])
    >>> passes.count([row], [2.0, 9.0])
    [1, 3]
    >>> passes.probe([row], 2.0, 3.0, most=9)
    [Probe(below=1, inside=1, peak=3.0, keys=(tensor([2.]), tensor([1])))]
    >>> passes.collect([row], 2.0, 3.0, passes.probe([row], 2.0, 3.0, most=0))
    [(tensor([2.]), tensor([1]))]
    """

    def __init__(self, magnitude: bool, wide: torch.dtype = torch.float32):
        self.magnitude, self.wide = magnitude, wide

    def count(self, rows: Sequence[Tensor], cuts: Sequence[float]) -> list[int]:
        """How many keys are below each of a few numbers; one read from the device."""
        sums = [
            torch.stack([(key < cut).count_nonzero() for cut in cuts]).to(rows[0].device)
            for row in rows
            for key in self._keys(row)
        ]
        return torch.stack(sums).sum(0).tolist() if sums else [0] * len(cuts)

    def probe(self, rows: Sequence[Tensor], low: float, high: float, most: int) -> list[Probe]:
        """Count the keys from ``low`` to below ``high`` in each row; one read from the device.

        A bracket up to infinity holds infinity itself. On a CPU, where reads are free, up to ``most`` keys
        are collected in the same pass.
        """
        counts, keys = [], []
        for row in rows:
            probed, start = [], 0
            for piece in self._split(row):
                count, found = self._probe(piece, low, high, most)
                most = -1 if found is None else most - len(found[0])
                probed.append((count, found and (found[0], found[1] + start)))
                start += piece.numel()
            counts.append([count for count, _ in probed])
            keys.append(_joined([found for _, found in probed]))
        unread = [count.to(rows[0].device) for own in counts for count in own if isinstance(count, Tensor)]
        read = iter(torch.stack(unread).tolist() if unread else ())
        known = [[next(read) if isinstance(count, Tensor) else count for count in own] for own in counts]
        return [_summed(own, found) for own, found in zip(known, keys, strict=True)]

    def collect(
        self, rows: Sequence[Tensor], low: float, high: float, probes: Sequence[Probe]
    ) -> list[tuple[Tensor, Tensor]]:
        """The keys that were counted, with their positions: their number is known, nothing is read."""
        found = []
        for row, probe in zip(rows, probes, strict=True):
            keys = probe.keys
            if keys is None:
                masks = [_up_to(key, high) & (key >= low) for key in self._keys(row)] if probe.inside else []
                none = torch.empty(0, dtype=torch.int64, device=row.device)
                positions = _positions(torch.cat(masks), probe.inside) if masks else none
                keys = self.key(row[positions]), positions
            found.append(keys)
        return found

    def shrink(self, row: Tensor, threshold: float, factor: float) -> None:
        """Multiply the elements of magnitude below a threshold by a factor, in place.

        What becomes smaller than the smallest normal number is zero: processors are slow on such numbers.
        """
        keep, flush = _limits(threshold, row.dtype)
        for piece in pieces(row):
            if not factor:
                torch.hardshrink(piece, keep, out=piece)
                continue
            kept = torch.hardshrink(piece, keep)  # what stays is itself, the rest zero
            # one of the two is zero, so that the sum is rounded once: it is the product, or the number itself
            torch.add(kept, piece.sub_(kept), alpha=factor, out=piece)
            torch.hardshrink(piece, flush, out=piece)

    def pull(self, sizes: Tensor, row: Tensor, before: Tensor, limit: float, back: float) -> None:
        """Move elements back, a part of the way to what they were before, where a size is below a limit."""
        for size, now, was in zip(*map(pieces, (sizes, row, before)), strict=True):
            pull_(now, was, self.key(size) < limit, back)

    def write(self, function: Callable[..., Tensor], row: Tensor, out: Tensor, number: float) -> None:
        """Write a function of each element, and of a number, into another row."""
        for own, there in zip(pieces(row, _SMALL), pieces(out, _SMALL), strict=True):
            there.copy_(function(own, number))

    def _split(self, row: Tensor) -> Sequence[Tensor]:
        """The pieces in which a row is probed."""
        return pieces(row)

    def _probe(self, piece: Tensor, low: float, high: float, most: int) -> tuple[Counts, Keys | None]:
        """Count the keys of a piece, and collect those in the bracket unless they are too many."""
        if not reads_are_free(piece):
            key = self.key(piece)
            counts = [(key < low).count_nonzero(), _up_to(key, high).count_nonzero(), key.amax()]
            return torch.stack(counts), None
        numbers = piece.to(self.wide).numpy()  # whose calls take a third of the time, and wake no thread
        key = np.abs(numbers) if self.magnitude else numbers
        lower, upper = key < low, _up_to(key, high)
        below, upto = int(np.count_nonzero(lower)), int(np.count_nonzero(upper))
        if upto - below > most:
            return [below, upto, float(key.max())], None
        positions = np.flatnonzero(lower != upper) if upto > below else np.empty(0, np.int64)
        return [below, upto, float(key.max())], (key[positions], positions)

    def _keys(self, row: Tensor) -> Iterator[Tensor]:
        return (self.key(piece) for piece in pieces(row))

    def key(self, piece: Tensor) -> Tensor:
        """What a part of a row is ranked by."""
        key = piece.abs() if self.magnitude else piece
        return key if key.dtype == self.wide else key.to(self.wide)


def pull_(now: Tensor, before: Tensor, mask: Tensor, back: float) -> None:
    """Move what is marked back, a part of the way to what it was before.

    >>> now = torch.tensor([1.0, 1.0])
    >>> pull_(now, torch.tensor([3.0, 3.0]), torch.tensor([True, False]), 0.5)
    >>> now
    tensor([2., 1.])
    """
    before = before.to(now.dtype)
    # each operation is rounded once, as those of a compiler are; the last leaves what is marked at rest
    moved = (now - before).mul_(1 - back).add_(before)
    torch.where(mask, moved, now, out=now)


def reads_are_free(row: Tensor) -> bool:
    """Whether numbers can be read without waiting for a device to finish what it does."""
    return row.device.type == "cpu"


def pieces(row: Tensor, size: int = 1 << 18) -> tuple[Tensor, ...]:
    """A row in pieces that a processor's cache holds; a GPU takes larger ones."""
    if row.device.type != "cpu":
        size = 1 << 24
    number = row.numel()  # len() of a tensor takes three times as long
    return row.split(size) if number > size else (row,) if number else ()


def _positions(mask: Tensor, number: int) -> Tensor:
    """The positions of so many marks."""
    try:
        return torch.nonzero_static(mask, size=number).squeeze(1)
    except NotImplementedError:  # an older torch has it on CPUs only: this reads their number once more
        return mask.nonzero().squeeze(1)


def _joined(found: Sequence[Keys | None]) -> tuple[Tensor, Tensor] | None:
    """The keys of all pieces of a row; None where those of one were not collected."""
    known = [own for own in found if own is not None]
    if not known or len(known) < len(found):
        return None
    keys, positions = known[0] if len(known) == 1 else map(np.concatenate, zip(*known, strict=True))
    return torch.from_numpy(keys), torch.from_numpy(positions)


def _up_to(key: Any, high: float) -> Any:
    """Which keys are below the end of a bracket; infinity belongs to the last."""
    return key <= high if high == torch.inf else key < high


def _summed(counts: list[list[float]], keys: tuple[Tensor, Tensor] | None) -> Probe:
    below, upto, peaks = zip(*counts, strict=True) if counts else ((), (), (0.0,))
    peak = max(peaks) if all(peak == peak for peak in peaks) else torch.nan
    return Probe(int(sum(below)), int(sum(upto) - sum(below)), peak, keys)


@lru_cache(maxsize=8)
def _limits(threshold: float, dtype: torch.dtype) -> tuple[float, float]:
    """What is above these stays, and is not flushed to zero."""
    return before(threshold, dtype), before(min(torch.finfo(dtype).tiny, threshold), dtype)


def _order(tensor: Tensor) -> list[int]:
    """The dimensions, the outermost in memory first."""
    return sorted(range(tensor.dim()), key=lambda dimension: (-tensor.stride(dimension), dimension))
