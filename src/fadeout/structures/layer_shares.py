"""LAMP's share of each layer, from counts alone: no sort, and the same on shards as on one process."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

_FINE, _COARSE = 8, 4  # of a bin's bits are the mantissa's: 256 bins from a number to its double, or 16
_LOWEST, _HIGHEST = 127 - 24, 127 + 8  # exponents: numbers from 2**-24 to 2**8 have fine bins, others coarse
_SHIFT = (_HIGHEST - _LOWEST) * (2**_FINE - 2**_COARSE)  # so many bins more than if all were coarse
_BINS = (256 << _COARSE) + _SHIFT + 1  # the first is for zeros, and for what is gone


def _edges() -> np.ndarray:
    """Where each bin begins, and where the last one ends, but for that of zeros."""
    edges = []
    for first, last, steps in ((0, _LOWEST, _COARSE), (_LOWEST, _HIGHEST, _FINE), (_HIGHEST, 256, _COARSE)):
        number = np.arange(first << steps, last << steps)
        edges.append(np.ldexp(1 + number % 2**steps / 2**steps, (number >> steps) - 127))
    return np.concatenate([*edges, [2.0**129]])


_SQUARES = np.concatenate([[0.0], ((_edges()[:-1] + _edges()[1:]) / 2) ** 2])


def count_sizes(scores: Tensor) -> Tensor:
    """How many scores there are of each size, in bins a 256th of an octave wide, or a 16th far from 1."""
    bits = scores.float().contiguous().view(torch.int32) >> (23 - _FINE)
    coarse = bits >> (_FINE - _COARSE)
    fine = bits - (_LOWEST << _FINE) + (_LOWEST << _COARSE)
    # below the fine range bins are the coarse ones, above it the coarse ones that come after
    bins = fine.clamp_(coarse, coarse + _SHIFT).add_(1)
    bins.masked_fill_(scores <= 0, 0)
    return torch.bincount(bins.view(-1), minlength=_BINS).cpu()


def share_out(counts: np.ndarray, k: int) -> np.ndarray:
    """How many of the ``k`` weights of lowest LAMP score each layer has.

    A weight's score is ``w^2 / sum(v^2 for v in its layer if |v| >= |w|)``, here with all weights of a bin
    at its middle.

    Args:
        counts: for each layer, how many weights there are in each bin of :func:`count_sizes`.
        k: how many there are to share out.

    >>> sizes = torch.tensor([[1.0, 2.0, 3.0, 4.0], [100.0, 100.0, 101.0, 200.0]])
    >>> share_out(torch.stack([count_sizes(size) for size in sizes]).numpy(), 5)
    array([2, 3])
    """
    not_smaller = np.flip(np.flip(counts * _SQUARES, 1).cumsum(1), 1)
    layer, bin = counts.nonzero()
    scores = _SQUARES[bin] / np.where(bin, not_smaller[layer, bin], 1.0)
    order = scores.argsort(kind="stable")
    found = counts[layer, bin][order]
    taken = np.clip(k - (found.cumsum() - found), 0, found)
    return np.bincount(layer[order], weights=taken, minlength=len(counts)).astype(np.int64)


class LayerShares:
    """How many of the targeted weights each layer has, looked up anew now and then, as they change slowly.

    In between, all layers lose the same fraction of what they have.

    Args:
        sizes: the number of weights of each layer.
        every: after so many steps they are looked up anew.
    """

    def __init__(self, sizes: Sequence[int], every: int = 1):
        self._sizes, self._every = np.array(sizes, np.int64), every
        self.kept = self._sizes
        """How many weights each layer had left when it was last looked up."""

    def find(self, k: int, count: Callable[[], np.ndarray], step: int = 0) -> list[int]:
        """Each layer's part of the ``k`` lowest.

        Args:
            k: how many there are in all.
            count: the counts of all layers, summed over all processes.
            step: of the training.
        """
        left, before = int(self._sizes.sum()) - k, int(self.kept.sum())
        if step % self._every == 0 or not _NEARLY * before <= left <= before:
            self.kept = self._sizes - share_out(count(), k)
            return (self._sizes - self.kept).tolist()
        exact = self.kept * (left / max(before, 1))
        kept = exact.astype(np.int64)
        most = (kept - exact).argsort(kind="stable")[: left - int(kept.sum())]
        kept[most] += 1
        return (self._sizes - kept).tolist()


_NEARLY = 0.98  # of what was left: with less, the shares may have changed
