"""Structured pruning: what the default fade should do with whole channels.

    python examples/channel_fades.py --jobs 2

At 50, 75 and 90 % of the parameters, with the learning rate in thirds: a small network with batch-norm on
digits, and ResNet-20 with 16 maps on two fifths of CIFAR-10 for three epochs (set FADEOUT_DATA). Writes
results/channel-fades.jsonl and .md.
"""

from dataclasses import replace
from typing import Any

import torch
from sweep import sweep

import fadeout
from fadeout.experiments.data import Dataset, cifar10, digits
from fadeout.experiments.training import evaluate, in_thirds, train
from fadeout.methods import GradualMagnitudePruning
from fadeout.schedules import cubic, exponential


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
    {"task": task, "method": method, "sparsity": sparsity, "seed": seed}
    for task, methods, seeds in (
        ("digits", METHODS, 3),
        ("cifar10", ["default", "growing target", "published 100 1e6", "gmp"], 1),
    )
    for seed in range(seeds)
    for sparsity in (0.9, 0.75, 0.5)
    for method in methods
]


def load(task: str) -> tuple[Dataset, torch.nn.Module, int, int]:
    """Data, network, epochs and batch size."""
    if task == "digits":
        return digits(), fadeout.models.smallcnn(norm=True), 60, 64
    data = cifar10()
    part = replace(data, train_x=data.train_x[:20_000], train_y=data.train_y[:20_000])
    return part, fadeout.models.resnet20(width=16), 3, 64


def run(task: str, method: str, sparsity: float, seed: int) -> dict[str, Any]:
    """Train once, from an initialisation that depends on the seed alone."""
    torch.manual_seed(seed)
    data, model, epochs, batch = load(task)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    steps = epochs * data.steps(batch)
    pruner = build(method, model, optimizer, data.example, sparsity, steps)
    scheduler = in_thirds(optimizer, steps)
    train(model, optimizer, data, epochs=epochs, batch_size=batch, seed=seed, scheduler=scheduler)
    before = evaluate(model, data.tests(1000)).top1
    pruner.remove()
    after = evaluate(model, data.tests(1000)).top1
    small = fadeout.compact(model, data.example)
    return {
        "before": round(before, 2),
        "after": round(after, 2),
        "compact": round(evaluate(small, data.tests(1000)).top1, 2),
        "left": sum(p.numel() for p in small.parameters()),
    }


if __name__ == "__main__":
    sweep("channel-fades", RUNS, run)
