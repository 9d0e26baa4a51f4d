"""A data set in memory."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Dataset:
    """Inputs and labels for training and test, as tensors.

    >>> data = Dataset(torch.zeros(5, 1), torch.arange(5), torch.zeros(2, 1), torch.arange(2))
    >>> data.steps(2), [len(y) for x, y in data.batches(2, epoch=0, seed=0)]
    (2, [2, 2])
    """

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor

    def steps(self, batch_size: int) -> int:
        """The batches in an epoch; the incomplete last one is left out."""
        return len(self.train_x) // batch_size

    def batches(self, batch_size: int, *, epoch: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch in an order that depends on seed and epoch alone, so that a resumed run sees the same."""
        order = torch.randperm(
            len(self.train_x), generator=torch.Generator().manual_seed(seed * 10_007 + epoch)
        )
        for step in range(self.steps(batch_size)):
            chosen = order[step * batch_size : (step + 1) * batch_size]
            yield self.train_x[chosen], self.train_y[chosen]
