"""The passes through ``torch.compile``: they read weights once where the plain ones do several times."""

import warnings
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fadeout.selection.passes import Counts, Keys, Passes, reads_are_free

_BITS = 5
_BLOCK = 1 << _BITS  # keys whose counts a pass gives together
_PIECE = 1 << 20  # keys in a pass: floats count up to 2^24 exactly
WORTH = 1 << 16  # shorter rows are not worth a call
# weights times steps from which to compile: each wins 2 ns (benchmarks/step_cost.py), eight times the cost
_PAYS = 2e10


def choose_passes(
    magnitude: bool, wide: torch.dtype, work: float, compile: bool | None = None, device: Any = "cpu"
) -> Passes:
    """The passes that pay: compiled for large models that train for many steps.

    Args:
        magnitude, wide: as in :class:`.Passes`.
        work: weights times steps, of the whole training.
        compile: yes or no, instead of the rule.
        device: where the weights lie: other devices want other compilers.
    """
    compiled = CompiledPasses(magnitude, wide)

    def trial() -> None:
        row = torch.ones(WORTH, dtype=wide, device=device)
        compiled.probe([row], 0.5, 1.5, WORTH)
        compiled.shrink(row, 0.5, 0.5)

    return compiled if magnitude and compiles(trial, work, compile) else Passes(magnitude, wide)


def compiles(trial: Callable[[], object], work: float, compile: bool | None = None) -> bool:
    """Whether to compile: where it pays, and a trial works. Where that fails there is one notice.

    Args:
        trial: runs what is to be compiled.
        work, compile: as in :func:`choose_passes`.
    """
    wanted = work > _PAYS if compile is None else compile
    if not wanted:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the compiler says about itself
            trial()
    except Exception as error:  # whatever the compiler lacks, training goes on without it
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        notice = f"torch.compile does not work here ({reason}): the pruner runs without it, more slowly"
        warnings.warn(notice, stacklevel=2)
        return False
    return True


class CompiledPasses(Passes):
    """The same as the plain passes, to the last bit: loops in C++ on a CPU, Triton kernels on a GPU."""

    def _split(self, row: Tensor) -> Sequence[Tensor]:
        if row.numel() < WORTH:
            return super()._split(row)
        whole = row.numel() // _BLOCK * _BLOCK  # the last block may be incomplete
        parts = row[:whole].split(_PIECE)
        return (*parts, row[whole:]) if whole < row.numel() else parts

    def _probe(self, piece: Tensor, low: float, high: float, most: int) -> tuple[Counts, Keys | None]:
        odd = piece.numel() % _BLOCK or piece.dtype != self.wide or high == torch.inf
        if odd or piece.numel() < WORTH or not self.magnitude:
            return super()._probe(piece, low, high, most)
        blocks = piece.view(-1, _BLOCK)
        bounds = _numbers(piece.dtype, piece.device, low, high)
        lower, upper, peak = _compiled(_count_blocks)(blocks, bounds)
        if not reads_are_free(piece):
            return torch.stack([lower.sum(), upper.sum(), peak.amax()]), None
        # NumPy does so little sooner than two threads that have to be woken
        lower, upper = lower.numpy(), upper.numpy()
        counts = [float(lower.sum()), float(upper.sum()), float(peak.numpy().max())]
        if counts[1] - counts[0] > most:
            return counts, None
        return counts, _between(blocks.numpy(), np.flatnonzero(upper != lower), low, high)

    def shrink(self, row: Tensor, threshold: float, factor: float) -> None:
        if not is_worth(self.wide, row):
            super().shrink(row, threshold, factor)
            return
        tiny = min(torch.finfo(row.dtype).tiny, threshold)
        _compiled(_shrink)(row, _numbers(row.dtype, row.device, threshold, factor, tiny))

    def pull(self, sizes: Tensor, row: Tensor, before: Tensor, limit: float, back: float) -> None:
        # products by other numbers are rounded, and a GPU's compiler adds to them before they are
        is_same = back == 0.5 or reads_are_free(row)
        if is_same and is_worth(self.wide, sizes, row, before):
            _compiled(_pull)(sizes, row, before, _numbers(row.dtype, row.device, limit, 1 - back))
        else:
            super().pull(sizes, row, before, limit, back)

    def write(self, function: Callable[..., Tensor], row: Tensor, out: Tensor, number: float) -> None:
        # a GPU's compiler divides less exactly
        is_same = getattr(function, "is_exact", False) and number and reads_are_free(row)
        if is_same and is_worth(self.wide, row, out):
            _compiled(_write)(function, row, out, _numbers(row.dtype, row.device, number))
        else:
            super().write(function, row, out, number)


def is_worth(wide: torch.dtype, *rows: Tensor) -> bool:
    """Whether tensors of the same size are what is compiled for."""
    return all(row.dtype == wide and row.is_contiguous() for row in rows) and rows[0].numel() >= WORTH


def shrink_lowest(row: Tensor, later: Tensor, n: int, m: int, width: int, factor: float) -> None:
    """Multiply all but the ``n`` highest of every group by a factor, in place: in one pass, without a mask.

    What becomes denormal is zero, as with :meth:`.Passes.shrink`; of equal magnitudes the last stay.

    Args:
        row: finite float32 numbers, of which those of a group are ``width`` apart.
        later: how many of its group come after each, ``m`` where it is in none.
        n, m: how many of a group stay, and how many it has.
        width: see ``row``.
        factor: of the others.
    """
    reach = (m - 1) * width
    sizes = row.new_empty(len(row) + 2 * reach)  # what is beyond the ends is in no group: never mind it
    torch.abs(row, out=sizes[reach : reach + len(row)])
    # the magnitudes of all that are so many places before or after: one memory, seen again and again
    around = sizes.view(torch.int32).as_strided((2 * m - 1, len(row)), (width, 1))
    numbers = _numbers(row.dtype, row.device, n, factor, torch.finfo(row.dtype).tiny)
    # as tensors of their own: views are compiled anew for other tensors that they may be views of
    row, around, later = map(torch.from_dlpack, (row, around, later))
    _compiled(_shrink_lowest)(row, around, later, numbers)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled at its first use: to import the compiler takes seconds."""
    return torch.compile(function, dynamic=True)


@lru_cache(maxsize=8)  # of a step: the same for every tensor
def _numbers(dtype: torch.dtype, device: torch.device, *numbers: float) -> Tensor:
    """For compiled code, which would be compiled anew for other numbers."""
    return torch.tensor(numbers, dtype=dtype, device=device)


def _count_blocks(blocks: Tensor, bounds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    size = blocks.abs()
    lower = torch.where(size < bounds[0], 1.0, 0.0).sum(1)  # sums of floats are vectorised, counts are not
    upper = torch.where(size < bounds[1], 1.0, 0.0).sum(1)
    return lower, upper, size.amax(1)


def _between(blocks: np.ndarray, some: np.ndarray, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """The magnitudes from ``low`` to below ``high`` in some blocks, and their positions in all.

    Positive numbers are in the order of their bits, so that one comparison of differences is enough.
    """
    kind = np.dtype(f"u{blocks.itemsize}")
    first, last = np.array([low, high], blocks.dtype).view(kind)
    bits = blocks.view(kind).take(some, axis=0).reshape(-1)
    bits &= kind.type(np.iinfo(kind).max >> 1)
    bits -= first  # what is lower wraps around, to the highest
    found = np.flatnonzero(bits < last - first)
    positions = (some[found >> _BITS] << _BITS) + (found & (_BLOCK - 1))
    return (bits[found] + first).view(blocks.dtype), positions


def _shrink(row: Tensor, numbers: Tensor) -> None:
    threshold, factor, tiny = numbers.unbind()
    shrunk = torch.where(row.abs() < threshold, row * factor, row)
    row.copy_(torch.where(shrunk.abs() < tiny, 0.0, shrunk))


def _shrink_lowest(row: Tensor, around: Tensor, later: Tensor, numbers: Tensor) -> None:
    """The same, with the bits of the magnitudes up to ``m - 1`` places before and after each.

    These are in the order of the magnitudes, and the sign of a difference says which is higher: ``>> 31``
    makes it 0 or -1. Comparisons would be compiled to masks, which take twice as long to count.
    """
    m = (len(around) + 1) // 2
    own, later = around[m - 1], later.to(torch.int32)
    higher = ((m - 1 - later) >> 31) * m  # how many of its group are; below zero where it is in none
    for distance in range(1, m):
        # the one so far before it or, where its group begins after that, the one m - distance after it: so
        # each meets all others of its group. Of equal ones the later is higher
        before, after = own - around[m - 1 - distance], own - 1 - around[2 * m - 1 - distance]
        is_before = (later - (m - distance)) >> 31
        higher = higher - (((before & is_before) | (after & ~is_before)) >> 31)
    n, factor, tiny = numbers.unbind()
    shrunk = row * factor
    row.copy_(torch.where(higher < n, row, torch.where(shrunk.abs() < tiny, 0.0, shrunk)))


def _pull(sizes: Tensor, row: Tensor, before: Tensor, numbers: Tensor) -> None:
    limit, pace = numbers.unbind()
    row.copy_(torch.where(sizes.abs() < limit, before + (row - before) * pace, row))


def _write(function: Callable[..., Tensor], row: Tensor, out: Tensor, numbers: Tensor) -> None:
    out.copy_(function(row, numbers[0]))
