"""Scores of channels: one for each, and comparable between layers."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fadeout import criteria
from fadeout.selection.floats import double
from fadeout.structures.base import split

TAYLOR = criteria.moving_average(criteria.taylor, decay=0.99, before=criteria.magnitude)
"""How much the loss feels a channel's scale, ``|scale * gradient|``, averaged over steps: the default."""


def over_prices(scores: Sequence[np.ndarray], prices: Sequence[float]) -> list[np.ndarray]:
    """Scores over the mean of their layer, and over the square root of what a channel of it costs.

    So layers compare, and of two that say the same that goes which takes more with it. Where the scores of
    no layer differ, they say nothing, and prices alone would take whole layers. Minus infinity stays so.

    >>> scores = [np.array([1.0, 3.0]), np.array([2.0, 6.0])]
    >>> [each.tolist() for each in over_prices(scores, [1.0, 4.0])]
    [[0.5, 1.5], [0.25, 0.75]]
    """
    relative = [_over_mean(each) for each in scores]
    if all(each.min() == each.max() for each in relative):
        return relative
    over = np.sqrt(np.maximum(prices, np.mean(prices) / 100))  # what costs nothing is not worth infinity
    return [each / root for each, root in zip(relative, over, strict=True)]


def _over_mean(scores: np.ndarray) -> np.ndarray:
    mean = scores[np.isfinite(scores)].mean() if np.isfinite(scores).any() else 0.0
    return scores / mean if mean > 0 else scores


def untied(scores: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Ranks in place of scores: of equal ones every layer loses the same share, not the first layers first.

    Minus infinity stays what it is.

    >>> [ranks.tolist() for ranks in untied([np.ones(2), np.ones(4)])]
    [[0.0, 3.0], [1.0, 2.0, 4.0, 5.0]]
    """
    together, widths = np.concatenate(scores), np.array([len(each) for each in scores])
    order = together.argsort(kind="stable")
    first = np.cumsum(widths) - widths
    if (together[order[1:]] == together[order[:-1]]).any():
        owner = np.repeat(np.arange(len(widths)), widths)
        by_layer = order[owner[order].argsort(kind="stable")]
        shares = np.empty(len(together))  # how much of its layer is lower
        shares[by_layer] = (np.arange(len(together)) - first[owner]) / widths[owner]
        order = np.lexsort((shares, together))
    ranks = np.empty(len(together))
    ranks[order] = np.arange(len(together))
    ranks[np.isneginf(together)] = -np.inf
    return np.split(ranks, first[1:])


def lowest_first(scores: Sequence[np.ndarray], stay: int) -> np.ndarray:
    """The channels of all layers that may go, counted through, the lowest first; of each so many stay.

    >>> lowest_first([np.array([3.0, 1.0]), np.array([2.0, 4.0, 0.0])], stay=1).tolist()
    [4, 1, 2]
    """
    ranks = [each.argsort(kind="stable").argsort() for each in scores]
    free = np.concatenate([rank < len(rank) - stay for rank in ranks])
    order = np.concatenate(scores).argsort(kind="stable")
    return order[free[order]]


def by_channel(score: Tensor) -> Tensor:
    """The scores of single channels, or the norms of their rows; minus infinity stays what it is."""
    if score.dim() == 1:
        return double(score)
    rows = score.reshape(len(score), -1 if len(score) else 1)
    gone = rows.amin(1) == -math.inf if rows.numel() else rows.any(1)
    norms = torch.cat([double(piece).norm(dim=1) for piece in split(rows)])
    return norms.masked_fill(gone.to(norms.device), -math.inf)


def squares(sizes: Tensor) -> Tensor:
    """Squares, which add up over processes; minus infinity stays what it is."""
    return sizes.square().masked_fill(sizes.isneginf(), -math.inf)


def roots(sums: Tensor) -> Tensor:
    """What their sums are squares of; minus infinity stays what it is."""
    return sums.sqrt().masked_fill(sums.isneginf(), -math.inf)


def joined(sizes: Sequence[Tensor]) -> np.ndarray:
    """The scores of channels of which several parameters have a part."""
    if len(sizes) == 1:
        return sizes[0].cpu().numpy()
    rows = torch.stack(list(sizes))
    return rows.norm(dim=0).masked_fill(rows.isneginf().any(0), -math.inf).cpu().numpy()
