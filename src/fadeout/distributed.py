"""Beyond one process: which part of the weights this one has, and sums over all of them.

A model may be replicated (DDP), sharded (FSDP2) or split by layers' dimensions (tensor parallel), over a mesh
of any shape. A pruner need not know: it works on this process's own pieces, and what has to be the same
everywhere follows from sums of counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial


@dataclass(frozen=True)
class Region:
    """The block of a tensor that a process has.

    Attributes:
        whole: the shape of the whole tensor.
        shape: that of the block.
        offset: where its first element is in the whole.
        owned: whether this process counts it; of several that have the same block only one does.
    """

    whole: tuple[int, ...]
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    owned: bool = True

    def positions(self, own: Tensor) -> Tensor:
        """Positions in the block, row by row, as positions in the whole.

        >>> Region((4, 3), (2, 3), (2, 0)).positions(torch.tensor([0, 4]))
        tensor([ 6, 10])
        """
        places, step = torch.zeros_like(own), 1
        for size, length, first in zip(self.whole[::-1], self.shape[::-1], self.offset[::-1], strict=True):
            places += (own % length + first) * step
            own, step = own // length, step * size
        return places


class Shards:
    """The blocks that this process has of some tensors, and sums over all processes.

    Args:
        regions: one for each tensor; none where the tensors are whole.
        group: the processes that have the other blocks; None where there are none.
        device: where sums are made.
    """

    def __init__(self, regions: Sequence[Region] = (), group: Any = None, device: Any = "cpu"):
        self._regions, self._group, self._device = list(regions), group, device
        sizes = [_size(region.whole) for region in self._regions]
        self._starts = [sum(sizes[:number]) for number in range(len(sizes))]
        self.total = sum(sizes)

    @property
    def sharded(self) -> bool:
        """Whether the tensors are parts of larger ones."""
        return bool(self._regions)

    def owns(self, number: int) -> bool:
        """Whether this process counts its block of a tensor."""
        return not self._regions or self._regions[number].owned

    def positions(self, number: int, own: Tensor, tensors: Sequence[Tensor]) -> Tensor:
        """Positions in a block, row by row, as positions among all elements of all whole tensors."""
        if not self._regions:
            return own + sum(tensor.numel() for tensor in tensors[:number])
        return self._regions[number].positions(own) + self._starts[number]

    def sum(self, numbers: Sequence[int]) -> list[int]:
        """The sums over all processes."""
        if self._group is None:
            return list(numbers)
        sums = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        dist.all_reduce(sums, group=self._group)
        return sums.tolist()


ALONE = Shards()


def _size(shape: Sequence[int]) -> int:
    return int(torch.Size(shape).numel())
