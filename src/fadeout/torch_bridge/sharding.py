"""Beyond one process: which part of the weights this one has, and sums over all of them.

A model may be replicated (DDP), sharded (FSDP2), or split along its layers' dimensions (tensor parallel),
over a mesh of any shape. A pruner works on this process's own blocks, and whatever must be the same
everywhere follows from sums of a few numbers. Without a process group all of this does nothing.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fadeout.torch_bridge.description import describe
from fadeout.torch_bridge.rank_agreement import meet, ranks_of

T = TypeVar("T")


def is_distributed(tensor: object) -> bool:
    """Whether a tensor is a ``DTensor``, of which each process holds a block."""
    module = sys.modules.get("torch.distributed.tensor")  # which takes long to import, and need not be there
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Any) -> Tensor:
    """This process's block of a tensor, in the same memory; of a plain tensor all of it."""
    return tensor.to_local() if is_distributed(tensor) else tensor


def gradient_of(parameter: Any) -> Tensor | None:
    """This process's block of a gradient, which is first distributed as its parameter is."""
    gradient = parameter.grad
    if is_distributed(gradient) and gradient.placements != parameter.placements:  # a sum of parts, perhaps
        gradient = parameter.grad = gradient.redistribute(parameter.device_mesh, parameter.placements)
    return None if gradient is None else local(gradient)


def whole(tensor: Any) -> Tensor:
    """All of a tensor; where it is distributed, every process must ask."""
    return tensor.full_tensor() if is_distributed(tensor) else tensor


def whole_state(state: Any, keep: Callable[[Tensor], Tensor] = lambda full: full) -> Any:
    """A state with whole tensors for distributed ones, for a file that one process writes for all.

    Args:
        state: dictionaries, lists and tuples of anything.
        keep: what is kept of such a tensor.
    """
    if isinstance(state, dict):
        return {key: whole_state(value, keep) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(whole_state(value, keep) for value in state)
    return keep(whole(state.detach())) if is_distributed(state) else state


def only_on(
    rank: int,
    make: Callable[[], T],
    errors: tuple[type[Exception], ...],
    group: Any = None,
    device: torch.device | None = None,
) -> T:
    """What one process of a group makes, on all of them; such errors there are raised everywhere."""
    found: list[Any] = [None, None]
    if dist.get_rank() == rank:
        try:
            found[0] = make()
        except errors as error:
            found[1] = error
    dist.broadcast_object_list(found, rank, group, device)
    if found[1] is not None:
        raise found[1]
    return found[0]


def first_of(tensors: Iterable[Any]) -> int | None:
    """The process that writes what several have together; None where nothing is distributed."""
    return min((int(t.device_mesh.mesh.min()) for t in tensors if is_distributed(t)), default=None)


def is_first(tensors: Iterable[Any]) -> bool:
    """Whether this process writes them."""
    first = first_of(tensors)
    return first is None or dist.get_rank() == first


def write_for_all(tensors: Iterable[Any], write: Callable[[], None]) -> None:
    """Let the first of the processes that have such tensors write, while the others wait for it.

    So the file is there for all of them, or the error. Where nothing is distributed, each writes for itself.
    """
    tensors = list(tensors)
    first = first_of(tensors)
    if first is None:
        write()
        return
    device = local(next(filter(is_distributed, tensors))).device
    only_on(first, write, (Exception,), mesh_group(tensors), device)


def distributed_as(block: Tensor, tensor: Any) -> Tensor:
    """Blocks like those of a tensor as one tensor, distributed as that is."""
    if not is_distributed(tensor):
        return block
    from torch.distributed.tensor import DTensor

    sizes = {"shape": tensor.shape, "stride": tensor.stride()}
    return DTensor.from_local(block, tensor.device_mesh, tensor.placements, run_check=False, **sizes)


def block_of(full: Tensor, tensor: Any) -> Tensor:
    """The block of a full tensor, plain or distributed, that this process has of another of its shape."""
    if is_distributed(full) and is_distributed(tensor):
        return local(full.redistribute(tensor.device_mesh, tensor.placements))  # pyright: ignore
    return whole(full)[region_of(tensor).slices] if is_distributed(tensor) else whole(full)


@dataclass(frozen=True)
class Region:
    """The block of a tensor that a process has.

    Attributes:
        whole: the shape of the whole tensor.
        shape: that of the block.
        offset: where its first element is in the whole.
    """

    whole: tuple[int, ...]
    shape: tuple[int, ...]
    offset: tuple[int, ...]

    @property
    def slices(self) -> tuple[slice, ...]:
        """Where the block is in the whole."""
        return tuple(slice(first, first + size) for first, size in zip(self.offset, self.shape, strict=True))

    def positions(self, own: Tensor) -> Tensor:
        """Positions in the block, row by row, as positions in the whole.

        >>> Region((4, 3), (2, 3), (2, 0)).positions(torch.tensor([0, 4]))
        tensor([ 6, 10])
        """
        positions, step = torch.zeros_like(own), 1
        for size, length, first in zip(self.whole[::-1], self.shape[::-1], self.offset[::-1], strict=True):
            positions += (own % length + first) * step
            own, step = own // length, step * size
        return positions


def region_of(tensor: Any) -> Region:
    """Where this process's block lies in a tensor."""
    shape = tuple(tensor.shape)
    if not is_distributed(tensor):
        return Region(shape, shape, (0,) * len(shape))
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return Region(shape, *compute_local_shape_and_global_offset(shape, tensor.device_mesh, tensor.placements))


def is_split(tensor: Any, dim: int = 0) -> bool:
    """Whether single slices of a tensor along a dimension lie on several processes."""
    return is_distributed(tensor) and any(
        kind.is_shard() and kind.dim % tensor.dim() != dim for kind in tensor.placements
    )


class Shards:
    """The blocks that this process has of some tensors, for sums over all of them.

    Args:
        regions: one for each tensor; none where the tensors are whole.
        owned: for each whether this process counts it; of several that have the same block, one does.
        layout: the processes that have the other blocks.
    """

    def __init__(
        self, regions: Sequence[Region] = (), owned: Sequence[bool] = (), layout: "Layout | None" = None
    ):
        self._regions, self._owned, self._layout = list(regions), list(owned), layout
        sizes = [torch.Size(region.whole).numel() for region in self._regions]
        self._starts = [sum(sizes[:number]) for number in range(len(sizes))]
        self.total = sum(sizes)

    @property
    def sharded(self) -> bool:
        """Whether the tensors are parts of larger ones."""
        return self._layout is not None

    def owns(self, number: int) -> bool:
        """Whether this process counts its block of a tensor."""
        return not self._owned or self._owned[number]

    def positions(self, number: int, own: Tensor, tensors: Sequence[Tensor]) -> Tensor:
        """Positions in a block, row by row, as positions among all elements of all whole tensors."""
        if not self._regions:
            return own + sum(tensor.numel() for tensor in tensors[:number])
        return self._regions[number].positions(own) + self._starts[number]

    def sum(self, numbers: Sequence[int]) -> list[int]:
        """The sums over all processes."""
        return list(numbers) if self._layout is None else self._layout.sum(numbers)


ALONE = Shards()


class Layout:
    """How the parameters of a model lie on the processes that train it.

    Args:
        parameters: those that are pruned, by name.
        group: of the processes; by default those of the parameters' mesh, or all.
        alone: only this process takes part, unless the parameters are distributed.

    Raises:
        ValueError: on all processes, where they do not train the same model.
    """

    def __init__(self, parameters: Mapping[str, Tensor], group: Any = None, alone: bool = False):
        self._parameters = dict(parameters)
        split = any(map(is_distributed, parameters.values()))
        together = dist.is_available() and dist.is_initialized() and (split or not alone)
        self._group = (group or mesh_group(parameters.values())) if together else None
        self.size = dist.get_world_size(self._group) if together else 1
        self.sharded = self.size > 1 and split
        if self.size > 1:
            self._device = local(next(iter(parameters.values()))).device
            self._first = dist.get_global_rank(self._group, 0) if self._group else 0
            self._check_alike()

    def shards(self, names: Iterable[str]) -> Shards:
        """The blocks of some parameters."""
        if not self.sharded:
            return ALONE
        names = list(names)
        regions = [region_of(self._parameters[name]) for name in names]
        return Shards(regions, [self.owns(name) for name in names], self)

    def region(self, name: str, block: Tensor) -> Region:
        """Where this process's block of a parameter lies in the whole; where it is not sharded, it is all."""
        return region_of(self._parameters[name] if self.sharded else block)

    def owns(self, name: str) -> bool:
        """Whether this process counts its block of a parameter: of several that have the same, the first."""
        if not self.sharded:
            return True
        parameter: Any = self._parameters[name]
        if not is_distributed(parameter):
            return dist.get_rank() == self._first
        mesh, here = parameter.device_mesh, parameter.device_mesh.get_coordinate()
        copies = [rank for rank, kind in zip(here, parameter.placements, strict=True) if kind.is_replicate()]
        # a mesh that is a slice of a larger one has sisters with copies of all it has
        return not any(copies) and self._first in mesh.mesh.flatten().tolist()

    def sum(self, numbers: Sequence[int]) -> list[int]:
        """Sums of whole numbers over all processes."""
        if self.size == 1:
            return list(numbers)
        return self._reduced(torch.tensor(numbers, dtype=torch.int64, device="cpu")).tolist()

    def total(self, numbers: Sequence[int]) -> list[int]:
        """Sums over all blocks; where each process has all of them, they are its own."""
        return self.sum(numbers) if self.sharded else list(numbers)

    def add(self, values: Tensor) -> Tensor:
        """The same for tensors."""
        return self._reduced(values.double()).to(values.device) if self.sharded else values

    def most(self, value: float) -> float:
        """The highest of all processes that have different blocks."""
        if not self.sharded:
            return value
        own = torch.tensor(value, dtype=torch.float64, device="cpu")
        return self._reduced(own, dist.ReduceOp.MAX).item()

    def most_by_row(self, blocks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The largest magnitude in each row of whole tensors, by the blocks that this process has of them."""
        rows = {name: _most_by_row(block) for name, block in blocks.items()}
        if not self.sharded:
            return rows
        regions = [self.region(name, block) for name, block in blocks.items()]
        whole = [own.new_zeros(r.whole[0]) for own, r in zip(rows.values(), regions, strict=True)]
        for there, own, region in zip(whole, rows.values(), regions, strict=True):
            there[region.slices[0]] = own
        highest = self._reduced(torch.cat(whole), dist.ReduceOp.MAX).split([len(there) for there in whole])
        return {name: most.to(own.dtype) for (name, own), most in zip(rows.items(), highest, strict=True)}

    def any(self, flags: Sequence[bool]) -> list[bool]:
        """What is true on any process, so that all of them raise the same error, and none waits for it."""
        return [number > 0 for number in self.sum([int(flag) for flag in flags])]

    def agree(self, make: Callable[[], T]) -> T:
        """What the first process makes, on all of them; what goes wrong there is raised everywhere."""
        if self.size == 1:
            return make()
        return only_on(self._first, make, (Exception,), self._group, self._device)

    def _reduced(self, values: Tensor, operation: Any = None, group: Any = None) -> Tensor:
        values = values.to(self._device)
        dist.all_reduce(values, operation or dist.ReduceOp.SUM, group=group or self._group)
        return values

    def _check_alike(self) -> None:
        """Raise on all processes where one has another model, or other weights where they have copies."""
        shapes = {name: tuple(parameter.shape) for name, parameter in self._parameters.items()}
        meet(ranks_of(self._group), {"prunable parameters": describe(shapes)})
        names = list(self._parameters)
        found = [False] * len(names)
        for group, copied in _copies(self._parameters, self._group):
            sums = [_checksum(local(self._parameters[name])) for name in copied]
            for name, differs in zip(copied, self._differ(sums, group), strict=True):
                found[names.index(name)] |= differs
        odd = [name for name, differs in zip(names, self.any(found), strict=True) if differs]
        if odd:
            raise ValueError(
                f"the processes have different weights in {', '.join(odd[:5])}: they would fade different "
                "ones. Wrap the model in DistributedDataParallel, which copies those of the first process to "
                "all, or build it everywhere with the same seed"
            )

    def _differ(self, numbers: list[int], group: Any) -> list[bool]:
        both = torch.tensor([numbers, [-number for number in numbers]], dtype=torch.int64, device="cpu")
        high, low = self._reduced(both, dist.ReduceOp.MAX, group).tolist()
        return [one != -other for one, other in zip(high, low, strict=True)]


def _most_by_row(block: Tensor) -> Tensor:
    most = block.abs().amax([*range(1, block.dim())]) if block.numel() else block.new_zeros(len(block))
    return most.to(torch.promote_types(block.dtype, torch.float32))


def mesh_group(parameters: Iterable[Any]) -> Any:
    """The processes of the largest mesh, if it has those of all others; else None, which means all."""
    meshes = [parameter.device_mesh for parameter in parameters if is_distributed(parameter)]
    mesh = max(meshes, key=lambda one: one.size(), default=None)
    if mesh is None or mesh.size() == dist.get_world_size():
        return None
    ranks = [set(one.mesh.flatten().tolist()) for one in meshes]
    if set().union(*ranks) != set(mesh.mesh.flatten().tolist()):
        return None
    return (mesh if mesh.ndim == 1 else mesh._flatten()).get_group()


def _copies(parameters: Mapping[str, Any], group: Any) -> Iterable[tuple[Any, list[str]]]:
    """Groups of processes, and the parameters of which these have copies."""
    found: dict[Any, list[str]] = {}
    for name, parameter in parameters.items():
        if not is_distributed(parameter):
            found.setdefault(group, []).append(name)
            continue
        if any(kind.is_partial() for kind in parameter.placements):
            raise ValueError(
                f"{name!r} is a sum over processes ({parameter.placements}): it cannot be pruned"
            )
        for dimension, kind in enumerate(parameter.placements):
            if kind.is_replicate():
                found.setdefault(parameter.device_mesh.get_group(dimension), []).append(name)
    return found.items()


def _checksum(tensor: Tensor) -> int:
    """A sum of all bits that does not depend on the order of summation."""
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize]
    total = int(tensor.detach().contiguous().view(kind).sum(dtype=torch.int64))
    return total % (2**61 - 1)  # so that it can change sign
