"""What the pruner's step costs on several processes, and on paper on many.

    python benchmarks/scaling.py

Measured: processes with one thread each, which talk over gloo on this machine, and a model that FSDP2 shards
among them. On paper: a step is a pass over a process's own weights, and a few rounds of sums, whatever the
number of weights.
"""

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import ceil, log2
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from harness import at_step, quartiles
from rows import Part, Row, table
from stopwatch import Stopwatch
from torch import Tensor, nn

import fadeout

QUICK = {"sizes": (1, 2), "weights": 40_000, "steps": 4}
WIDTH = 1000
BYTES_A_WEIGHT = 12  # in float32: the search reads each weight once, the decay reads and writes it once


@dataclass(frozen=True)
class Machine:
    """What the cost on paper depends on."""

    name: str
    bandwidth: float
    """Of the memory of each process, in bytes a second."""
    latency: float
    """Of one message from one process to another, in seconds."""

    def step(self, weights: float, processes: int, sums: float) -> tuple[float, float]:
        """Seconds of the pass over a process's own weights, and of so many sums.

        A sum of a few hundred bytes goes up a tree and down again: ``2 ceil(log2 N)`` messages, one after the
        other, whose length does not matter.
        """
        passes = BYTES_A_WEIGHT * weights / processes / self.bandwidth
        return passes, sums * 2 * ceil(log2(processes)) * self.latency

    def text(self) -> str:
        return f"{self.name}: {self.bandwidth / 1e9:g} GB/s, {self.latency * 1e6:g} microseconds"


MACHINES = (Machine("GPU cluster", 2e12, 10e-6), Machine("CPU cluster", 1e11, 50e-6))
PAPER = ((25e6, 8), (1e9, 8), (7e9, 64), (70e9, 256), (70e9, 1024))


def measure(sizes: Sequence[int] = (1, 2, 4), weights: int = 16_000_000, steps: int = 40) -> Part:
    """Time the pruner's hooks in a sharded model.

    Args:
        sizes: numbers of processes.
        weights: of the whole model, and again of each process.
        steps: of which the last half counts.
    """
    rows, facts = [], {}
    for what, total in (("the model", lambda size: weights), ("each process", lambda size: weights * size)):
        for size in sizes:
            found = _on_processes(size, total(size), steps)
            facts[f"{what}, {size}"] = found
            label = f"{weights:,} weights in {what}, {size} process{'es' if size > 1 else ''}"
            rows.append(Row(label, [1e3 * value for value in quartiles(found["seconds"])], "ms"))
    sums, sent = (
        max(statistics.median(found[what]) for found in facts.values()) for what in ("sums", "bytes")
    )
    about = (
        "Time inside the hooks of one step in plain PyTorch, the slowest process of each step; one thread "
        "each, so four processes share two cores. In half of the steps a process sends at most "
        f"{sent:.0f} bytes in {sums:.0f} sums, whatever the number of weights.\n\n{_on_paper(sums)}"
    )
    return Part("Several processes", about, rows, {"runs": facts})


def _on_paper(sums: float) -> str:
    headers = ["weights", "processes", *(f"{machine.name}: pass, sums" for machine in MACHINES)]
    cells = []
    for weights, processes in PAPER:
        costs = [machine.step(weights, processes, sums) for machine in MACHINES]
        text = [f"{1e3 * own:.2g} ms, {1e3 * talk:.2g} ms" for own, talk in costs]
        cells.append([f"{weights:,.0f}", str(processes), *text])
    assumed = "; ".join(machine.text() for machine in MACHINES)
    return (
        f"On paper, with compiled passes that move {BYTES_A_WEIGHT} bytes a weight at the full bandwidth of "
        f"a process's memory, {sums:.0f} sums in a step, as measured, and messages of a given latency "
        f"({assumed}):\n\n"
        f"{table(headers, cells)}"
    )


def _on_processes(size: int, weights: int, steps: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        answers = context.SimpleQueue()
        arguments = [
            (rank, size, str(Path(folder) / "store"), weights, steps, answers) for rank in range(size)
        ]
        processes = [context.Process(target=_train, args=own) for own in arguments]
        for process in processes:
            process.start()
        found = [answers.get() for _ in processes]
        for process in processes:
            process.join()
    seconds = [max(each) for each in zip(*(one["seconds"] for one in found), strict=True)]
    return {"seconds": seconds, "bytes": found[0]["bytes"], "sums": found[0]["sums"]}


def _train(rank: int, size: int, store: str, weights: int, steps: int, answers: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(minutes=5)
    )
    torch.manual_seed(0)
    model: Any = fully_shard(nn.Linear(WIDTH, weights // WIDTH, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Stopwatch(optimizer) as watch:
        pruner = fadeout.SelectiveWeightDecay(
            model,
            optimizer,
            sparsity=0.9,
            steps=2000,
            structure=fadeout.Elements(compile=False),
            fade=fadeout.Progressive(),
        )
    at_step(pruner, 1000)
    own: Any = next(model.parameters())
    sent, real = [], dist.all_reduce

    def counted(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        sent.append(tensor.numel() * tensor.itemsize)
        return real(tensor, *args, **kwargs)

    dist.all_reduce = counted
    found: dict[str, list[float]] = {"seconds": [], "bytes": [], "sums": []}
    for number in range(steps):
        own.to_local().detach().add_(torch.randn_like(own.to_local()), alpha=1e-5)
        dist.barrier()
        sent.clear()
        optimizer.step()
        if number >= steps // 2:
            for name, value in (("seconds", watch.seconds), ("bytes", sum(sent)), ("sums", len(sent))):
                found[name].append(value)
    answers.put(found)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    start = time.perf_counter()
    print(measure().text())
    print(f"\n{time.perf_counter() - start:.0f} seconds")
