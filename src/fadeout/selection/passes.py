"""Passes over weights in plain PyTorch, in pieces, so that nothing as large as the weights is made.

Those of :mod:`.compiled` give the same numbers to the last bit, for a parameter may be whole in one process
and in small parts in others. A *row* is a tensor in the order of its memory, a *key* what its elements are
ranked by, a *position* counts elements from 0.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fadeout.selection.floats import before

_SMALL = 1 << 16  # shorter rows are not worth a second thread
_NONE = torch.empty(0, dtype=torch.int64, device="cpu")


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


class Fact(NamedTuple):
    """Of a row: how many keys are below the bracket, how many in it, and the highest one (NaN if one is)."""

    below: int
    inside: int
    peak: float


class Probe(NamedTuple):
    """What :meth:`Passes.probe` found in each row.

    Attributes:
        facts: how many there are.
        keys: those in the bracket and their positions, where they were collected in passing.
    """

    facts: list[Fact]
    keys: list[tuple[Tensor, Tensor] | None]


Found = tuple[list[Any], tuple[Tensor, Tensor] | None]


class Passes:
    """The passes in plain PyTorch.

    Args:
        magnitude: keys are magnitudes; otherwise the numbers themselves.
        wide: the dtype in which keys are compared.

    >>> passes, row = Passes(magnitude=True), torch.tensor([1.0, -2.0, 3.0])
    >>> passes.count([row], [2.0, 9.0])
    [1, 3]
    >>> probe = passes.probe([row], 2.0, 3.0, most=9)
    >>> probe.facts
    [Fact(below=1, inside=1, peak=3.0)]
    >>> passes.collect([row], 2.0, 3.0, probe)
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

    def probe(self, rows: Sequence[Tensor], low: float, high: float, most: int) -> Probe:
        """Count the keys from ``low`` to below ``high``; one read from the device.

        A bracket up to infinity holds infinity itself. On a CPU, where reads are free, up to ``most`` keys
        are collected in the same pass.
        """
        facts, found = [], []
        for row in rows:
            own, keys = self._probe(row, low, high, most)
            facts.append(own)
            found.append(keys)
            most -= 0 if keys is None else len(keys[0])
        unread = [fact.to(rows[0].device) for own in facts for fact in own if isinstance(fact, Tensor)]
        read = iter(torch.stack(unread).tolist() if unread else ())
        numbers = [[next(read) if isinstance(fact, Tensor) else fact for fact in own] for own in facts]
        return Probe([_summed(own) for own in numbers], found)

    def collect(
        self, rows: Sequence[Tensor], low: float, high: float, probe: Probe
    ) -> list[tuple[Tensor, Tensor]]:
        """The keys that a probe counted, with their positions: their number is known, nothing is read."""
        found = []
        for row, fact, keys in zip(rows, probe.facts, probe.keys, strict=True):
            if keys is None:
                below = torch.le if high == torch.inf else torch.lt
                masks = [(key >= low) & below(key, high) for key in self._keys(row)] if fact.inside else []
                positions = _positions(torch.cat(masks), fact.inside) if masks else _NONE.to(row.device)
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

    def _probe(self, row: Tensor, low: float, high: float, most: int) -> Found:
        """Of each piece of a row: how many are below, how many up to the end of the bracket, and the peak."""
        if len(row) <= _SMALL and reads_are_free(row):
            return self._probe_small(row, low, high, most)
        facts, own, start, free = [], [], 0, reads_are_free(row)
        for key in self._keys(row):
            lower = key < low
            upper = key <= high if high == torch.inf else key < high
            facts += [lower.count_nonzero(), upper.count_nonzero(), key.amax()]
            if free and most >= 0:
                number = int(facts[-2]) - int(facts[-3])
                most -= number
                if number and most >= 0:
                    inside = upper.logical_xor_(lower).numpy()  # whose search takes a fifth of the time
                    positions = torch.from_numpy(np.flatnonzero(inside))
                    own.append((key[positions], positions.add_(start)))
            start += len(key)
        return facts, self._joined(own) if free and most >= 0 else None

    def _probe_small(self, row: Tensor, low: float, high: float, most: int) -> Found:
        """The same in NumPy, whose calls take a third of the time."""
        key = self.key(row).numpy()
        if not len(key):
            return [], (torch.from_numpy(key), _NONE) if most >= 0 else None
        lower, upper = key < low, key <= high if high == torch.inf else key < high
        below, upto = np.count_nonzero(lower), np.count_nonzero(upper)
        facts = [float(below), float(upto), float(key.max())]
        if upto - below > most:
            return facts, None
        positions = np.flatnonzero(lower != upper)
        return facts, (torch.from_numpy(key[positions]), torch.from_numpy(positions))

    def _joined(self, keys: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        if len(keys) == 1:
            return keys[0]
        values, positions = zip(*keys, strict=True) if keys else ((), ())
        return torch.cat([torch.empty(0, dtype=self.wide, device="cpu"), *values]), torch.cat(
            [_NONE, *positions]
        )

    def _keys(self, row: Tensor) -> Iterator[Tensor]:
        return (self.key(piece) for piece in pieces(row))

    def key(self, piece: Tensor) -> Tensor:
        """What a part of a row is ranked by."""
        key = piece.abs() if self.magnitude else piece
        return key if key.dtype == self.wide else key.to(self.wide)


def reads_are_free(row: Tensor) -> bool:
    """Whether numbers can be read without waiting for a device to finish what it does."""
    return row.device.type == "cpu"


def pieces(row: Tensor) -> tuple[Tensor, ...]:
    """A row in pieces that a processor's cache holds; a GPU takes larger ones."""
    size = 1 << 18 if row.device.type == "cpu" else 1 << 24
    number = row.numel()  # len() of a tensor takes three times as long
    return row.split(size) if number > size else (row,) if number else ()


def _positions(mask: Tensor, number: int) -> Tensor:
    """The positions of so many marks."""
    try:
        return torch.nonzero_static(mask, size=number).squeeze(1)
    except NotImplementedError:  # an older torch has it on CPUs only: this reads their number once more
        return mask.nonzero().squeeze(1)


def _summed(facts: list[float]) -> Fact:
    below, upto, peaks = sum(facts[::3]), sum(facts[1::3]), facts[2::3]
    peak = max(peaks, default=0.0) if all(peak == peak for peak in peaks) else torch.nan
    return Fact(int(below), int(upto - below), peak)


@lru_cache(maxsize=8)
def _limits(threshold: float, dtype: torch.dtype) -> tuple[float, float]:
    """What is above these stays, and is not flushed to zero."""
    return before(threshold, dtype), before(min(torch.finfo(dtype).tiny, threshold), dtype)


def _order(tensor: Tensor) -> list[int]:
    """The dimensions, the outermost in memory first."""
    return sorted(range(tensor.dim()), key=lambda dimension: (-tensor.stride(dimension), dimension))
