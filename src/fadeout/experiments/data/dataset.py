"""A data set in memory, and the order in which an epoch sees it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Generator, Tensor

IGNORED = -100
"""The label of what takes no part in loss and accuracy, as cross-entropy has it."""


def _same(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True)
class Dataset:
    """Inputs and labels for training and test, as tensors.

    Args:
        train_x: the inputs for training, as they are stored: bytes, to save memory, or floats.
        train_y: their labels.
        test_x: the inputs for the test.
        test_y: their labels.
        prepare: makes of a batch as it is stored what a network takes; by default the same.
        augment: changes a batch of training inputs, as they are stored, at random: (batch, generator) ->
            batch; by default not.

    >>> data = Dataset(torch.zeros(5, 1), torch.arange(5), torch.zeros(2, 1), torch.arange(2))
    >>> data.steps(2), [len(y) for x, y in data.batches(2, epoch=0, seed=0)]
    (2, [2, 2])
    >>> data.num_classes, data.example.shape
    (5, torch.Size([1, 1]))
    """

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    prepare: Callable[[Tensor], Tensor] = _same
    augment: Callable[[Tensor, Generator], Tensor] | None = None

    @property
    def num_classes(self) -> int:
        """The classes that the labels tell apart."""
        return int(max(y.max() for y in (self.train_y, self.test_y) if len(y))) + 1

    @property
    def example(self) -> Tensor:
        """A batch of one test input, as a network takes it, for tracing."""
        return self._inputs(self.test_x[:1])

    def steps(self, batch_size: int) -> int:
        """The batches in an epoch; the incomplete last one is left out."""
        count = len(self.train_y)
        if not 0 < batch_size <= count:
            raise ValueError(f"a batch of {batch_size} from {count} inputs for training: take 1 to {count}")
        return count // batch_size

    def batches(
        self, batch_size: int, *, epoch: int, seed: int, first: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch of training batches, prepared and augmented, from number ``first`` on.

        A batch depends on the seed, the epoch and its own number alone, so that a resumed run sees the same;
        those before ``first`` cost nothing.
        """
        order = torch.randperm(len(self.train_y), generator=Generator().manual_seed(seed * 10_007 + epoch))
        for step in range(first, self.steps(batch_size)):
            chosen = order[step * batch_size : (step + 1) * batch_size]
            yield self._inputs(self.train_x[chosen], _step_generator(seed, epoch, step)), self.train_y[chosen]

    def tests(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The test part in its order, prepared; the last batch may be smaller."""
        for start in range(0, len(self.test_y), batch_size):
            part = slice(start, start + batch_size)
            yield self._inputs(self.test_x[part]), self.test_y[part]

    def validation(self, fraction: float = 0.1) -> "Dataset":
        """The data set for choosing settings: its test part is a fixed fraction of the training part.

        >>> x, y = torch.arange(20.0), torch.arange(20) % 2
        >>> held_out = Dataset(x, y, x, y).validation(0.2)
        >>> len(held_out.train_y), held_out.test_y.bincount().tolist()
        (16, [2, 2])
        """
        if not 0 < fraction < 1:
            raise ValueError(f"a fraction of {fraction} to hold out: take one between 0 and 1, such as 0.1")
        generator, out = Generator().manual_seed(0), torch.zeros(len(self.train_y), dtype=torch.bool)
        for label in self.train_y.unique():
            members = (self.train_y == label).nonzero().flatten()
            shuffled = members[torch.randperm(len(members), generator=generator)]
            out[shuffled[: round(len(members) * fraction)]] = True
        if not out.any() or out.all():
            raise ValueError(f"{len(out)} inputs are too few to hold out {fraction:.0%} of each class")
        return replace(
            self,
            train_x=self.train_x[~out],
            train_y=self.train_y[~out],
            test_x=self.train_x[out],
            test_y=self.train_y[out],
        )

    def _inputs(self, x: Tensor, generator: Generator | None = None) -> Tensor:
        """A batch as a network takes it, augmented where there is a generator to draw from."""
        return self.prepare(self.augment(x, generator) if self.augment and generator else x)


def _step_generator(seed: int, epoch: int, step: int) -> Generator:
    """What a batch draws from: its numbers have nothing to do with those of any other batch."""
    mixed = np.random.SeedSequence([seed % 2**64, epoch, step]).generate_state(1, np.uint64)
    return Generator().manual_seed(int(mixed[0]))
