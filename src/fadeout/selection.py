"""The exact k lowest scores over many tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor


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
    total = sum(score.numel() for score in scores)
    if not 0 <= k <= total:
        raise ValueError(f"cannot take the {k} lowest of {total} scores")
    if k in (0, total):
        return [torch.full_like(score, k > 0, dtype=torch.bool) for score in scores]

    home = scores[0].device
    wide = torch.float64 if any(s.dtype == torch.float64 for s in scores) else torch.float32
    every = torch.cat([score.reshape(-1).to(home, wide) for score in scores])
    threshold = every.kthvalue(k).values
    marks = every < threshold
    ties = (every == threshold).nonzero().squeeze(1)  # in order of position
    marks[ties[: k - int(marks.count_nonzero())]] = True

    parts = marks.split([score.numel() for score in scores])
    return [part.to(s.device).view(s.shape) for part, s in zip(parts, scores, strict=True)]
