"""Blocks: tiles of weight matrices, which a block-sparse product skips as a whole."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fadeout._arguments import Count, checked
from fadeout.selection.floats import double
from fadeout.structures.base import Bound, BoundMagnitudes, Structure, split
from fadeout.torch_bridge.sharding import Layout, Region


@checked
@dataclass(frozen=True)
class Blocks(Structure):
    """Whole tiles fade: ``rows`` outputs by ``columns`` inputs of a weight matrix.

    A parameter is read as the matrix ``weight.flatten(1)``, so that the positions of a filter count as
    inputs. Its tiles begin at the first row and column; where its sizes do not divide evenly, the last tiles
    are smaller. The score of a tile is the mean of the scores of its weights, and the tiles of all parameters
    are ranked together, equal ones by position.

    The target is exact as far as tiles allow: with ``n`` weights in all, so many of the lowest tiles go that
    the number of their weights is as near to ``round(T n)`` as it can be. It differs from that by at most
    half of ``rows * columns``, and not at all where all tiles are equally large and ``T n`` is a multiple of
    their size.

    Args:
        rows, columns: of a tile, whole numbers from 1 on.

    >>> import torch
    >>> scores = {"weight": torch.tensor([[1.0, 1.0, 3.0], [1.0, 4.0, 3.0]])}
    >>> Blocks(2, 2).select(scores, 0.6)  # 4 of 6 weights are nearest; their mean is 1.75
    {'weight': tensor([[ True,  True, False],
            [ True,  True, False]])}

    Reference: Gray, Radford and Kingma, "GPU Kernels for Block-Sparse Weights", 2017.
    """

    rows: Count
    columns: Count

    def mark(
        self, values: Mapping[str, Tensor], sparsity: float, layout: Layout, magnitude: bool = False
    ) -> dict[str, Tensor]:
        tilings = {
            name: _Tiling(layout.region(name, value), self.rows, self.columns)
            for name, value in values.items()
        }
        sums = [
            tiling.sums(values[name], magnitude) if layout.owns(name) else tiling.nothing(values[name])
            for name, tiling in tilings.items()
        ]
        together = layout.add(torch.cat([part.to(sums[0].device) for part in sums])).cpu().numpy()
        if magnitude and not np.isfinite(together).all():
            raise FloatingPointError("a number is not finite")
        sizes = np.concatenate([tiling.sizes for tiling in tilings.values()])
        gone = torch.from_numpy(_mark_lowest(together / sizes, sizes, round(sparsity * int(sizes.sum()))))
        parts = gone.split([len(tiling.sizes) for tiling in tilings.values()])
        return {
            name: tiling.spread(part.to(values[name].device))
            for (name, tiling), part in zip(tilings.items(), parts, strict=True)
        }

    def _bound(self, parameters: dict[str, nn.Parameter], layout: Layout, steps: int) -> Bound:
        regions = {name: layout.region(name, parameter) for name, parameter in parameters.items()}
        torn = layout.any([region.shape[2:] != region.whole[2:] for region in regions.values()])
        for name, is_torn in zip(parameters, torn, strict=True):
            if is_torn:
                raise ValueError(
                    f"{name!r} is sharded along its positions, whose tiles would be scattered: shard it "
                    "along its first or second dimension, or leave it out with prunable="
                )
        return BoundBlocks(self, parameters, layout)


class BoundBlocks(BoundMagnitudes):
    """The tiles of one network."""

    structure: Blocks

    def check(self, sparsity: float) -> None:
        """Raise where a target is too near to nothing or to everything for any tile, whichever is lowest."""
        rows, columns = self.structure.rows, self.structure.columns
        regions = (self.layout.region(name, p) for name, p in self.parameters.items())
        sizes = np.concatenate([_Tiling(region, rows, columns).sizes for region in regions])
        total, smallest = int(sizes.sum()), int(sizes.min())
        wanted = round(sparsity * total)
        given = f"sparsity={sparsity:g} of {total} weights in {len(sizes)} tiles of at least {smallest} each"
        if 2 * wanted < smallest:
            raise ValueError(
                f"{given} is not even one tile: nothing would be removed. Ask for more, or take smaller tiles"
            )
        if 2 * (total - wanted) <= smallest:
            raise ValueError(
                f"{given} is all of them: nothing would be left. Ask for less, or take smaller tiles"
            )


@dataclass(frozen=True)
class _Tiling:
    """The tiles of one parameter, of which this process has a region."""

    region: Region
    rows: int
    columns: int

    @cached_property
    def sizes(self) -> np.ndarray:
        """How many weights each tile has, row by row."""
        height, width = _as_matrix(self.region.whole)
        heights = np.diff([*range(0, height, self.rows), height])
        widths = np.diff([*range(0, width, self.columns), width])
        return np.outer(heights, widths).ravel()

    def sums(self, values: Tensor, magnitude: bool = False) -> Tensor:
        """The sums of this process's part of each tile, in float64: float32 numbers hardly ever round there.

        In pieces that a processor's cache holds.
        """
        whole = self.nothing(values)
        if not values.numel():
            return whole
        (top, bottom), (left, right) = self._margins
        matrix = values.reshape(_as_matrix(self.region.shape))
        if top or bottom or left or right:
            matrix = F.pad(matrix, (left, right, top, bottom))
        width = matrix.shape[1] // self.columns
        sums = []
        for piece in split(matrix, self.rows):
            wide = double(piece.abs() if magnitude else piece)
            sums.append(wide.view(-1, self.rows, width, self.columns).sum(3).sum(1))
        whole.view(self._shape)[self._tiles] = torch.cat(sums)
        return whole

    def nothing(self, scores: Tensor) -> Tensor:
        """Sums where this process has none."""
        return scores.new_zeros(len(self.sizes), dtype=torch.float64)

    def spread(self, tiles: Tensor) -> Tensor:
        """A flag for each tile as a mask of this process's block."""
        own = tiles.view(self._shape)[self._tiles]
        height, width = own.shape
        wide = own[:, None, :, None].expand(-1, self.rows, -1, self.columns)
        (top, bottom), (left, right) = self._margins
        mask = wide.reshape(height * self.rows, width * self.columns)
        mask = mask[top : len(mask) - bottom, left : mask.shape[1] - right]
        return mask.reshape(self.region.shape)

    @property
    def _shape(self) -> tuple[int, int]:
        """How many tiles there are, downwards and across."""
        height, width = _as_matrix(self.region.whole)
        return -(-height // self.rows), -(-width // self.columns)

    @property
    def _spans(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """This process's first row, the one after its last, and the rows of a tile; the same for columns."""
        inner = prod(self.region.whole[2:])
        first, (height, width) = (*self.region.offset, 0, 0), _as_matrix(self.region.shape)
        left = first[1] * inner
        return (first[0], first[0] + height, self.rows), (left, left + width, self.columns)

    @property
    def _tiles(self) -> tuple[slice, ...]:
        """The tiles of which this process has a part."""
        return tuple(slice(first // size, -(-end // size)) for first, end, size in self._spans)

    @property
    def _margins(self) -> tuple[tuple[int, int], ...]:
        """How much of them lies before and after what this process has."""
        return tuple((first % size, -end % size) for first, end, size in self._spans)


def _as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    return (shape[0], prod(shape[1:])) if shape else (1, 1)


def _mark_lowest(scores: np.ndarray, sizes: np.ndarray, wanted: int) -> np.ndarray:
    """Mark the lowest units, as many as have, by their sizes, the number that is nearest to the wanted one.

    The sizes say how many that are at least and at most; only what lies between is sorted.

    >>> _mark_lowest(np.array([3.0, 1.0, 2.0]), np.array([4, 4, 2]), 5)
    array([False,  True,  True])
    """
    settled = np.isneginf(scores)  # what a pruner keeps down: it was the nearest in another ranking
    if settled.any() and 2 * abs(sizes[settled].sum() - wanted) <= sizes.max():
        return settled
    few, many = _how_many(sizes, wanted)
    low, high = np.partition(scores, (few, many))[[few, many]]
    gone = scores < low
    between = np.flatnonzero((scores >= low) & (scores <= high))
    order = between[scores[between].argsort(kind="stable")]
    reached = np.concatenate([[0], sizes[order].cumsum()]) + sizes[gone].sum()
    off = np.abs(reached - wanted)
    gone[order[: len(off) - 1 - off[::-1].argmin()]] = True  # of two that are as near, the larger
    return gone


def _how_many(sizes: np.ndarray, wanted: int) -> tuple[int, int]:
    """Positions in any ranking between which so many weights are reached."""
    counts = np.bincount(sizes)
    found = []
    for kinds in (counts.nonzero()[0][::-1], counts.nonzero()[0]):
        number, left = 0, wanted
        for kind in kinds.tolist():
            taken = min(int(counts[kind]), left // kind)
            number, left = number + taken, left - taken * kind
            if taken < counts[kind]:
                break
        found.append(number)
    return min(found[0], len(sizes) - 1), min(found[1] + 1, len(sizes) - 1)
