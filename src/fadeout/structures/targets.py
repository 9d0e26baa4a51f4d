"""The targeted weights of a parameter, and what is done to them in place."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from fadeout.selection import passes as kernels
from fadeout.selection.floats import after
from fadeout.selection.passes import Passes
from fadeout.selection.search import Lowest


class Target(Protocol):
    """Which weights of one parameter are targeted."""

    def mask(self, weight: Tensor) -> Tensor:
        """True where a weight is targeted."""
        ...

    def parts(self, weight: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """The parameter in pieces: a mask, the weights, and the same part of other tensors of its shape."""
        ...


class Marked:
    """The targeted weights by a mask: for every structure and criterion."""

    def __init__(self, mask: Tensor):
        self._mask = mask

    def mask(self, weight: Tensor) -> Tensor:
        return self._mask

    def parts(self, weight: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
        yield self._mask, weight, *others


class Below:
    """The targeted weights by a threshold on their magnitude: no mask of the parameter is ever made.

    Args:
        lowest: the lowest weights of all parameters.
        number: that of the parameter among them.
        passes: how to go over it.
    """

    def __init__(self, lowest: Lowest, number: int, passes: Passes):
        self.lowest, self._number, self._passes = lowest, number, passes
        ties = lowest.ties[number] if lowest.ties else None
        self._ties = None if ties is None or not ties.numel() else ties
        # what targeted weights are below, but for ties that have to be told apart
        self._limit = lowest.threshold if lowest.ties else after(lowest.threshold, passes.wide)

    def mask(self, weight: Tensor) -> Tensor:
        return self.lowest.mask(self._number, weight)

    def parts(self, weight: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
        rows = [kernels.flat(tensor) for tensor in (weight, *others)]
        alike = all(tensor.stride() == weight.stride() for tensor in others)
        if self._ties is not None or not alike or rows[0].data_ptr() != weight.data_ptr():
            yield self.mask(weight), weight, *others
            return
        for pieces in zip(*map(kernels.pieces, rows), strict=True):
            size = pieces[0].abs().to(self._passes.wide)
            yield size < self._limit, *pieces

    def multiply(self, weight: Tensor, factor: float) -> bool:
        """Multiply the targeted weights, if the parameter's memory and dtype allow it in a quick pass."""
        if self.lowest.threshold < 0 or not weight.numel():  # nothing is targeted
            return True
        row = kernels.flat(weight)
        if row.dtype != self._passes.wide or row.data_ptr() != weight.data_ptr():
            return False
        self._passes.shrink(row, self._limit, factor)
        if self._ties is not None:  # after the pass, under whose limit the factor takes them
            places = torch.unravel_index(self._ties, weight.shape)
            shrunk = weight[places] * factor
            weight[places] = shrunk.masked_fill_(shrunk.abs() < torch.finfo(weight.dtype).tiny, 0)
        return True
