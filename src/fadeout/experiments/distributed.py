"""Several processes at one training, started by ``torchrun``: who takes what, and how they agree.

A batch is made as in one process, and each process takes its share of it, so that a training means the same
whatever the number of processes. What a process says alone (files, the display, the clock) rank 0 says.
"""

import inspect
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from fadeout.experiments.data.dataset import IGNORED
from fadeout.torch_bridge.sharding import is_distributed, only_on, whole_state

T = TypeVar("T")

WAYS = ("ddp", "fsdp")


class Share(NamedTuple):
    """What a process takes of a batch.

    Attributes:
        x, y: its inputs and labels.
        weight: what its mean loss is multiplied by, so that the mean over all processes is that of the batch.
        number: which share it is; 0 for a whole batch.
    """

    x: Any
    y: Tensor
    weight: float
    number: int


class World:
    """The processes that train together; by default this one alone, for which nothing here does anything.

    Args:
        how: ``"ddp"`` (each has the whole network) or ``"fsdp"`` (each has a part of every parameter).

    >>> World(rank=1, size=3).share(torch.arange(5.0), torch.arange(5))
    Share(x=tensor([1., 4.]), y=tensor([1, 4]), weight=1.2, number=1)
    """

    def __init__(self, how: str | None = None, rank: int = 0, size: int = 1, device: str = "cpu"):
        self.how, self.rank, self.size, self.device = how, rank, size, device
        self.main = rank == 0
        """Whether this process writes and prints."""
        # DDP, the last to hold the group, would let it go without letting go of the interpreter's lock, for
        # which the group's threads may wait, and it for them: who has joined holds it longer than the network
        self._group = dist.group.WORLD if size > 1 and dist.is_initialized() else None

    def __repr__(self) -> str:
        return f"{self.how}, {self.size} processes" if self.size > 1 else "one process"

    # Batches ------------------------------------------------------------------------------------

    def share(self, x: Any, y: Tensor) -> Share:
        """Every n-th input of a batch, or all of a graph, which cannot be divided."""
        if self.size == 1 or isinstance(x, tuple):
            return Share(x, y, 1.0, 0)
        mine: Any = slice(self.rank, None, self.size)
        labelled = y != IGNORED
        count = int(labelled[mine].sum())
        if count == 0:  # it must take part in what the others do together, with something that does not count
            mine = labelled.nonzero()[:1, 0]
        return Share(x[mine], y[mine], self.size * count / int(labelled.sum()), self.rank)

    def own(self, data: Any) -> Any:
        """The data for this process: images that are decoded as they are needed are those of its share."""
        return replace(data, part=(self.rank, self.size)) if hasattr(data, "part") else data

    def check(self, model: nn.Module, batch_size: int, example: Any) -> None:
        """Raise where a share would be too small for the statistics of a batch-norm."""
        if self.size > 1 and not isinstance(example, tuple) and batch_size < 2 * self.size and _norms(model):
            raise ValueError(
                f"a batch of {batch_size} among {self.size} processes: the network has batch-norms, which "
                "take the statistics of two inputs or more in each process. Take --batch-size "
                f"{2 * self.size} or more, or fewer processes"
            )

    @torch.no_grad()
    def average(self, model: nn.Module, loss: Tensor, weight: float) -> Tensor:
        """The loss of the whole batch; the running statistics of batch-norms are averaged with it.

        After each step, so that at any time all processes have the same network, to test it or to save it.
        """
        if self.size == 1:
            return loss
        parts = [loss, *(t for m in _norms(model) for t in (m.running_mean, m.running_var) if t is not None)]
        flat = torch.cat([part.flatten().double() for part in parts]).cpu() * (weight / self.size)
        dist.all_reduce(flat)
        loss = loss.clone()
        for part, mean in zip([loss, *parts[1:]], flat.split([part.numel() for part in parts]), strict=True):
            part.copy_(mean.view(part.shape))
        return loss

    # Agreement ----------------------------------------------------------------------------------

    def total(self, *counts: int) -> tuple[int, ...]:
        """Each count, summed over all processes."""
        return tuple(self._reduced(counts, dist.ReduceOp.SUM))

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Each flag: whether a process has it."""
        return tuple(bool(flag) for flag in self._reduced(flags, dist.ReduceOp.MAX))

    def _reduced(self, numbers: tuple[int, ...], operation: Any) -> list[int]:
        if self.size == 1:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.int64)
        dist.all_reduce(tensor, operation)
        return tensor.tolist()

    def first(self, act: Callable[[], T]) -> T:
        """Act on rank 0 alone: all get what it returns, or raise its ``ValueError`` or ``OSError``."""
        return act() if self.size == 1 else only_on(0, act, (ValueError, OSError))

    # Network and state --------------------------------------------------------------------------

    def wrap(self, model: nn.Module) -> nn.Module:
        """The network to train: what averages its gradients over the processes is put around it, or into it.

        With ``fsdp`` the network itself changes: its parameters become sharded ones.
        """
        if self.size == 1:
            return model
        if self.how == "ddp":
            return self._replicated(model)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(self.device.partition(":")[0], (self.size,))
        for module in [*_blocks(model), model]:
            # always sharded again: what a pruner changes after a forward pass must be seen by the next
            fully_shard(module, mesh=mesh, reshard_after_forward=True)
        return model

    def _replicated(self, model: nn.Module) -> nn.Module:
        parameters = inspect.signature(DistributedDataParallel).parameters
        # average() sees to buffers; torch 2.13 has a new name for the option
        names = [name for name in ("forward_sync_buffers", "broadcast_buffers") if name in parameters]
        options: dict[str, Any] = {names[0]: False}
        if self.device != "cpu":
            return DistributedDataParallel(model, **options)
        model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]  # faster convolutions
        replicated = DistributedDataParallel(model, **options)
        replicated.register_comm_hook(self.size, _mean_in_order)
        return replicated

    def whole(self, state: Any) -> Any:
        """A state with whole tensors for sharded ones, in the memory of rank 0; the others get empty ones."""
        if self.how != "fsdp" or self.size == 1:
            return state
        return whole_state(state, lambda full: full.cpu() if self.main else full.new_empty(0))

    def load(self, model: nn.Module, state: dict[str, Any]) -> None:
        """Load a network's whole state."""
        mine = model.state_dict() if self.size > 1 else {}
        model.load_state_dict({name: _spread(value, mine.get(name)) for name, value in state.items()})

    def load_optimizer(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load an optimizer's whole state."""
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        spread = {
            number: {name: _spread(value, held[number]) for name, value in values.items()}
            for number, values in state["state"].items()
        }
        optimizer.load_state_dict({**state, "state": spread})


ALONE = World()


@contextmanager
def join(how: str | None = None, device: str = "cpu", *, timeout: float = 1800.0) -> Iterator[World]:
    """Meet the other processes that ``torchrun`` has started; a process that it has not started is alone.

    Args:
        how: ``"ddp"``, ``"fsdp"``, or None for a process that is alone.
        device: ``cpu``, or ``cuda``, of which each process takes its own.
        timeout: seconds that a process waits for another.

    >>> with join("ddp") as world:
    ...     print(world)
    one process
    """
    size = launched()
    if how is not None and how not in WAYS:
        raise ValueError(f"no way {how!r} to share a training among processes; there are {', '.join(WAYS)}")
    if size > 1 and how is None:
        raise ValueError(
            f"torchrun has started {size} processes, and nothing says how they share the run: pass "
            "--parallel ddp (each has the whole network) or --parallel fsdp (each has a part of it)"
        )
    if size == 1:
        yield World(device=device)
        return
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"processes train together on cpu or cuda, got {device!r}")
    if kind == "cuda":
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(device)
    try:
        _meet(kind, timedelta(seconds=timeout))
        yield World(how, dist.get_rank(), size, device)
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error).lower():
            raise ConnectionError(
                "another process of this run is gone; the same command goes on from the last checkpoint, and "
                "torchrun --max-restarts does so by itself"
            ) from error
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    # Where gloo's threads still hold the last tensors when Python ends, a process that is done is aborted
    # (https://github.com/pytorch/pytorch/issues/190489): they get the time to let go
    time.sleep(0.5)


def _meet(kind: str, timeout: timedelta) -> None:
    # what processes agree on is on the CPU, whatever the device
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    env, rank, size, stores = os.environ, int(os.environ["RANK"]), launched(), cast(Any, dist)
    if env.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or env.get("GROUP_WORLD_SIZE") != "1":
        dist.init_process_group(backend, timeout=timeout)
        return
    # torchrun keeps its store when it restarts the processes, and with it the addresses of those that died;
    # on one machine all know which start this is (https://github.com/pytorch/pytorch/issues/135712)
    store = stores.TCPStore(env["MASTER_ADDR"], int(env["MASTER_PORT"]), size, False, timeout)
    store = stores.PrefixStore(f"start {env['TORCHELASTIC_RESTART_COUNT']}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)


def launched() -> int:
    """How many processes ``torchrun`` has started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def _norms(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def _mean_in_order(
    size: int,
    bucket: dist.GradBucket,  # pyright: ignore[reportPrivateImportUsage]  # DDP insists on it
) -> torch.futures.Future[Tensor]:
    """The mean of gradients, summed in the order of the ranks.

    In which order an all-reduce sums depends on where a number stands, and DDP rearranges gradients after its
    first step: three processes that resume would sum otherwise than those that were not interrupted.
    """
    parts = [torch.empty_like(bucket.buffer()) for _ in range(size)]

    def mean(_: object) -> Tensor:
        for part in parts[1:]:
            parts[0] += part
        return parts[0].div_(size)

    work: Any = dist.all_gather(parts, bucket.buffer(), async_op=True)
    return work.get_future().then(mean)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """What a network repeats: the members of its sequences and lists, which are gathered one at a time."""
    for child in module.children():
        members = isinstance(module, nn.Sequential | nn.ModuleList)
        if members and not isinstance(child, nn.Sequential | nn.ModuleList):
            if any(True for _ in child.parameters()):
                yield child
        else:
            yield from _blocks(child)


def _spread(value: Any, like: Any) -> Any:
    """A whole tensor, sharded as another one is; anything else as it is."""
    if not is_distributed(like) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
