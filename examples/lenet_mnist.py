"""LeNet-5 on MNIST at extreme sparsity: the default fade, gradual magnitude pruning, the published form.

    FADEOUT_DATA=... python examples/lenet_mnist.py --jobs 2     # 30 runs, 3 core-minutes each

Conditions of the paper's Section 4.6 at a tenth of its length: 20 epochs, batch 128, SGD at 0.1 without
momentum or decay. Writes results/lenet-mnist.jsonl and .md; runs that are already there are not repeated.
"""

import time
from typing import Any

import torch
from sweep import sweep

import fadeout
from fadeout.experiments.data import mnist
from fadeout.experiments.training import accuracy, train
from fadeout.methods import GradualMagnitudePruning

EPOCHS, BATCH = 20, 128
PUBLISHED = fadeout.Decay(fadeout.schedules.exponential(0.1, 1e4), weight_decay=5e-4)

METHODS: dict[str, Any] = {
    "fadeout": fadeout.SelectiveWeightDecay,
    "gmp": GradualMagnitudePruning,
    "published": lambda *args, **kwargs: fadeout.SelectiveWeightDecay(*args, fade=PUBLISHED, **kwargs),
    "dense": fadeout.NoPruning,
}
TARGETS = {
    "fadeout": (0.99, 0.9, 0.98, 0.995),
    "gmp": (0.99, 0.9, 0.98, 0.995),
    "published": (0.99,),
    "dense": (0.0,),
}
RUNS = [
    {"task": "LeNet-5, MNIST", "method": method, "sparsity": sparsity, "seed": seed, "epochs": EPOCHS}
    for seed in range(3)
    for method, targets in TARGETS.items()
    for sparsity in targets
]


def run(task: str, method: str, sparsity: float, seed: int, epochs: int) -> dict[str, Any]:
    """Train once, from an initialisation that depends on the seed alone."""
    data, start = mnist(), time.perf_counter()
    torch.manual_seed(seed)
    model = fadeout.models.lenet5()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = METHODS[method](model, optimizer, sparsity=sparsity, steps=epochs * data.steps(BATCH))
    train(model, optimizer, data, epochs=epochs, batch_size=BATCH, seed=seed)
    before = accuracy(model, data.test_x, data.test_y)
    masks = pruner.remove()
    return {
        "before": round(before, 2),
        "after": round(accuracy(model, data.test_x, data.test_y), 2),
        "left": masks.left,
        "seconds": round(time.perf_counter() - start),
    }


if __name__ == "__main__":
    sweep("lenet-mnist", RUNS, run)
