"""Structured pruning: what the default fade should do with whole channels.

    python examples/channel_fades.py --jobs 2

A small network with batch-norm on digits, its learning rate in thirds, at 50, 75 and 90 % of the parameters.
Writes results/channel-fades.jsonl and .md.
"""

from typing import Any

import torch
from sweep import sweep

import fadeout
from fadeout.data import digits
from fadeout.methods import GradualMagnitudePruning
from fadeout.schedules import cubic, exponential
from fadeout.train import accuracy, in_thirds, train


def growing(sparsity: float, begin: float, end: float) -> Any:
    """The target as a schedule: it grows, as it does for single weights."""
    return cubic(sparsity, window=(begin, end))


def build(
    method: str,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    example: torch.Tensor,
    sparsity: float,
    steps: int,
) -> Any:
    """The pruner of a method's name."""
    common: dict[str, Any] = {"steps": steps, "structure": fadeout.Channels(example)}
    if method == "gmp":
        return GradualMagnitudePruning(model, optimizer, sparsity=sparsity, **common)
    if method.startswith("published"):
        low, high = (float(number) for number in method.split()[1:])
        fade = fadeout.Decay(exponential(low, high), weight_decay=5e-4)
        return fadeout.SelectiveWeightDecay(model, optimizer, sparsity=sparsity, fade=fade, **common)
    if method == "growing target":
        return fadeout.SelectiveWeightDecay(model, optimizer, sparsity=growing(sparsity, 0.1, 0.75), **common)
    if method == "target until 0.4":
        return fadeout.SelectiveWeightDecay(model, optimizer, sparsity=growing(sparsity, 0.0, 0.4), **common)
    return fadeout.SelectiveWeightDecay(model, optimizer, sparsity=sparsity, **common)


METHODS = ["default", "growing target", "target until 0.4", "published 0.1 1e5", "published 100 1e6", "gmp"]
RUNS = [
    {"task": "digits", "method": method, "sparsity": sparsity, "seed": seed}
    for seed in range(3)
    for sparsity in (0.9, 0.75, 0.5)
    for method in METHODS
]


def run(task: str, method: str, sparsity: float, seed: int) -> dict[str, Any]:
    """Train once, from an initialisation that depends on the seed alone."""
    torch.manual_seed(seed)
    data, model, epochs, batch = digits(), fadeout.models.smallcnn(norm=True), 60, 64
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    steps = epochs * data.steps(batch)
    scheduler, example = in_thirds(optimizer, steps), data.test_x[:2]
    pruner = build(method, model, optimizer, example, sparsity, steps)
    train(
        model, optimizer, data, epochs=epochs, batch_size=batch, seed=seed, scheduler=scheduler, pruner=pruner
    )
    before = accuracy(model, data.test_x, data.test_y)
    pruner.remove()
    after = accuracy(model, data.test_x, data.test_y)
    small = fadeout.compact(model, example)
    return {
        "before": round(before, 2),
        "after": round(after, 2),
        "compact": round(accuracy(small, data.test_x, data.test_y), 2),
        "left": sum(p.numel() for p in small.parameters()),
    }


if __name__ == "__main__":
    sweep("channel-fades", RUNS, run)
