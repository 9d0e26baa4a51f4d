"""Passes over weights, in pieces, so that nothing as large as the weights is made.

Each pass exists twice: in plain PyTorch, which runs everywhere, and compiled (``torch.compile``), which
reads the weights once where the plain one reads them several times. Both give the same answers. A *row* is
a tensor in the order of its memory, a *key* what its elements are ranked by.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor


def flat(tensor: Tensor) -> Tensor:
    """A tensor as one row in the order of its memory; a view, where the memory has no holes."""
    return tensor.permute(_order(tensor)).reshape(-1)


def by_rows(tensor: Tensor, positions: Tensor) -> Tensor:
    """Positions in :func:`flat` as positions row by row, whatever the memory layout.

    >>> by_rows(torch.zeros(2, 3).t(), torch.tensor([1]))  # the second in memory begins the second row
    tensor([2])
    """
    strides, step = {}, 1
    for dimension in range(tensor.dim() - 1, -1, -1):
        strides[dimension] = step
        step *= tensor.shape[dimension]
    places = torch.zeros_like(positions)
    for dimension in reversed(_order(tensor)):
        places += positions % tensor.shape[dimension] * strides[dimension]
        positions = positions // tensor.shape[dimension]
    return places


class Probe(NamedTuple):
    """What :meth:`Passes.probe` found.

    Attributes:
        below: how many keys are below the bracket.
        inside: how many are in it.
        values: these, row after row; None if they were more than were asked for.
        places: their positions in each row.
        peak: the highest key; NaN if one is.
    """

    below: int
    inside: int
    values: Tensor | None
    places: list[Tensor]
    peak: float


class Passes:
    """The passes in plain PyTorch.

    Args:
        magnitude: keys are magnitudes; otherwise the numbers themselves.
        wide: the dtype in which keys are compared.

    >>> passes = Passes(magnitude=True)
    >>> passes.count([torch.tensor([1.0, -2.0]), torch.tensor([3.0])], [2.0, 9.0])
    [1, 3]
    >>> passes.probe([torch.tensor([1.0, -2.0, 3.0])], 2.0, 3.0, most=9).places
    [tensor([1])]
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
        return torch.stack(sums).sum(0).tolist()

    def probe(self, rows: Sequence[Tensor], low: float, high: float, most: int) -> Probe:
        """Look at the keys from ``low`` to below ``high``; at most ``most`` of them are collected.

        A bracket up to infinity holds infinity itself. There is one read from the device.
        """
        facts, found, left = [], [], most
        for row in rows:
            fact, positions = self._probe(row, low, high, left)
            facts.append(fact.to(rows[0].device))
            found.append(positions)
            left -= 0 if positions is None else len(positions)
        table = torch.stack(facts).tolist()
        below, inside = int(sum(fact[0] for fact in table)), int(sum(fact[1] for fact in table))
        if inside > most:
            return Probe(below, inside, None, [], _peak(table))
        places = [
            self._collect(row, low, high, int(fact[1])) if positions is None else positions
            for row, fact, positions in zip(rows, table, found, strict=True)
        ]
        values = [self._key(row[own]).to(rows[0].device) for row, own in zip(rows, places, strict=True)]
        return Probe(below, inside, torch.cat(values), places, _peak(table))

    def shrink(self, row: Tensor, threshold: float, factor: float) -> None:
        """Multiply the elements of magnitude below a threshold by a factor, in place.

        What becomes smaller than the smallest normal number is zero: processors are slow on such numbers.
        """
        tiny = torch.finfo(row.dtype).tiny
        keep, flush = _before(threshold, row.dtype), _before(min(tiny, threshold), row.dtype)
        for piece in pieces(row):
            # what stays is itself, the rest zero; a step from the piece towards that is the product
            piece.lerp_(torch.hardshrink(piece, keep), 1 - factor)
            torch.hardshrink(piece, flush, out=piece)

    def _probe(self, row: Tensor, low: float, high: float, most: int) -> tuple[Tensor, Tensor | None]:
        """Counts below and inside and the peak of a row; on a CPU, where reads are free, positions too."""
        facts, own, start, cpu = [], [], 0, row.device.type == "cpu"
        for key in self._keys(row):
            lower = key < low
            upper = key <= high if high == torch.inf else key < high
            inside = lower.logical_xor(upper)
            number = inside.count_nonzero()
            facts.append(torch.stack([lower.count_nonzero().double(), number.double(), key.amax().double()]))
            if cpu and most >= 0:
                most -= int(number)
                own.append(_nonzero(inside).add_(start) if number and most >= 0 else NONE)
            start += len(key)
        together = torch.stack(facts)
        fact = torch.cat([together[:, :2].sum(0), together[:, 2].amax().view(1)])
        return fact, torch.cat(own) if cpu and most >= 0 else None

    def _collect(self, row: Tensor, low: float, high: float, number: int) -> Tensor:
        """The positions of so many keys: their number is known, so the device need not be waited for."""
        if not number:
            return NONE.to(row.device)
        key = self._key(row)
        inside = (key >= low) & (key <= high if high == torch.inf else key < high)
        return torch.nonzero_static(inside, size=number).squeeze(1)

    def _keys(self, row: Tensor) -> Iterator[Tensor]:
        return (self._key(piece) for piece in pieces(row))

    def _key(self, piece: Tensor) -> Tensor:
        key = piece.abs() if self.magnitude else piece
        return key if key.dtype == self.wide else key.to(self.wide)


class CompiledPasses(Passes):
    """The same through ``torch.compile``: loops in C++ on a CPU, Triton kernels on a GPU."""

    def _probe(self, row: Tensor, low: float, high: float, most: int) -> tuple[Tensor, Tensor | None]:
        length = len(row) // _BLOCK * _BLOCK
        if length < _WORTH or row.dtype != self.wide or not self.magnitude or high == torch.inf:
            return super()._probe(row, low, high, most)
        bounds = torch.tensor([low, high], dtype=row.dtype, device=row.device)
        lower, upper, peak = _compiled(_blocks)(row[:length].view(-1, _BLOCK), bounds)
        number = (upper - lower).double().sum()
        fact = torch.stack([lower.double().sum(), number, peak.amax().double()])
        rest, last = super()._probe(row[length:], low, high, most) if length < len(row) else (None, NONE)
        if rest is not None:
            fact = torch.cat([fact[:2] + rest[:2], torch.maximum(fact[2], rest[2]).view(1)])
        if row.device.type != "cpu" or fact[1] > most:
            return fact, None
        blocks = (upper != lower).nonzero().squeeze(1)
        near = (blocks.unsqueeze(1) * _BLOCK + torch.arange(_BLOCK)).view(-1)
        key = row[near].abs()
        found = near[(key >= low) & (key < high)]
        return fact, found if last is None else torch.cat([found, last + length])

    def shrink(self, row: Tensor, threshold: float, factor: float) -> None:
        if len(row) < _WORTH or not row.is_contiguous():
            return super().shrink(row, threshold, factor)
        tiny = min(torch.finfo(row.dtype).tiny, threshold)
        _compiled(_shrink)(row, torch.tensor([threshold, factor, tiny], dtype=row.dtype, device=row.device))
        return None


def passes(magnitude: bool, wide: torch.dtype, work: float, compile: bool | None = None) -> Passes:
    """The passes that pay: compiled for large models that train for many steps.

    Args:
        magnitude, wide: as in :class:`Passes`.
        work: weights times steps, of the whole training.
        compile: yes or no, instead of the rule.
    """
    wanted = work > _PAYS if compile is None else compile
    if not wanted or not magnitude:
        return Passes(magnitude, wide)
    try:
        compiled, row = CompiledPasses(magnitude, wide), torch.ones(_WORTH, dtype=wide)
        compiled.probe([row], 0.5, 1.5, 0)
        compiled.shrink(row, 0.5, 0.5)
    except Exception as error:  # whatever the compiler lacks, training goes on without it
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        notice = f"torch.compile does not work here ({reason}): the pruner runs without it, more slowly"
        warnings.warn(notice, stacklevel=2)
        return Passes(magnitude, wide)
    return compiled


def pieces(row: Tensor) -> tuple[Tensor, ...]:
    """A row in pieces that a processor's cache holds; a GPU takes larger ones."""
    return row.split(1 << 18 if row.device.type == "cpu" else 1 << 24)


_BLOCK = 256  # keys whose counts the compiled pass gives together
_WORTH = 1 << 16  # shorter rows are not worth a call of compiled code
_PAYS = 2e10  # weights times steps from which the time to compile is won back (benchmarks/step_cost.py)
NONE = torch.empty(0, dtype=torch.int64)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled at its first use: to import the compiler takes seconds."""
    return torch.compile(function, dynamic=True)


def _blocks(rows: Tensor, bounds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    size = rows.abs()
    lower = torch.where(size < bounds[0], 1.0, 0.0).sum(1)  # sums of floats are vectorised, counts are not
    upper = torch.where(size < bounds[1], 1.0, 0.0).sum(1)
    return lower, upper, size.amax(1)


def _shrink(row: Tensor, numbers: Tensor) -> None:
    threshold, factor, tiny = numbers.unbind()
    shrunk = torch.where(row.abs() < threshold, row * factor, row)
    row.copy_(torch.where(shrunk.abs() < tiny, 0.0, shrunk))


def _peak(table: list[list[float]]) -> float:
    peaks = [fact[2] for fact in table]
    return torch.nan if any(peak != peak for peak in peaks) else max(peaks)


def after(number: float, dtype: torch.dtype = torch.float32) -> float:
    """The next larger number of a dtype."""
    this = torch.tensor(number, dtype=dtype)
    return float(torch.nextafter(this, torch.full_like(this, torch.inf)))


def _before(number: float, dtype: torch.dtype) -> float:
    """The next smaller number of a dtype: to be above it is to be at least the number."""
    below = torch.tensor(number, dtype=dtype)
    return float(torch.nextafter(below, torch.zeros_like(below))) if number != torch.inf else number


def _nonzero(mask: Tensor) -> Tensor:
    """The positions of what is True, where that is little: eight are looked at together."""
    if len(mask) < 1024:
        return mask.nonzero().squeeze(1)
    end = len(mask) // 8 * 8
    words = mask[:end].view(torch.int64).nonzero()
    near = torch.cat([(words * 8 + torch.arange(8)).view(-1), torch.arange(end, len(mask))])
    return near[mask[near]]


def _order(tensor: Tensor) -> list[int]:
    """The dimensions, the outermost in memory first."""
    if tensor.is_contiguous():
        return list(range(tensor.dim()))
    return sorted(range(tensor.dim()), key=lambda dimension: (-tensor.stride(dimension), dimension))
