"""What else the default fade could be: variants of Progressive, each with one thing changed.

    FADEOUT_DATA=... python examples/fade_variants.py --jobs 2

LeNet-5 on MNIST for 8 epochs (SGD at 0.1 throughout) and a small network on digits (SGD with momentum and
decay, learning rate in thirds). Writes results/fade-variants.jsonl and .md; docs/progressive.md reads them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from sweep import sweep

import fadeout
from fadeout.criteria import lamp
from fadeout.experiments.data import digits, mnist
from fadeout.experiments.training import accuracy, in_thirds, train
from fadeout.methods import GradualMagnitudePruning
from fadeout.schedules import cubic, exponential


@dataclass(frozen=True)
class Variant(fadeout.Progressive):
    """Progressive with other constants: the window of the target, the end of the fade, its first rate."""

    begin: float = 0.1
    end: float = 0.75
    zero: float = 0.75
    rate: float = 10.0

    def target(self, progress: float, steps: int) -> float:
        return cubic(1.0, window=(self.begin, self.end))(progress + 1 / steps)

    def dose(self, progress: float, steps: int, group: Mapping[str, Any]) -> float:
        position = (progress + 1 / steps) / self.zero
        return math.inf if position >= 1 else exponential(self.rate / steps, math.log(1000))(position)


class LinearTarget(fadeout.Progressive):
    """The target grows in a straight line."""

    def target(self, progress: float, steps: int) -> float:
        return min(max((progress + 1 / steps - 0.1) / 0.65, 0.0), 1.0)


class FullTarget(fadeout.Progressive):
    """The whole target from the first step."""

    def target(self, progress: float, steps: int) -> float:
        return 1.0


class NoFade(fadeout.Progressive):
    """The target grows, but targeted weights are set to zero at once; unlike GMP they may come back."""

    def dose(self, progress: float, steps: int, group: Mapping[str, Any]) -> float:
        return math.inf


FADES: dict[str, Any] = {
    "default": fadeout.Progressive(),
    "target from 0": Variant(begin=0.0),
    "target from 0.2": Variant(begin=0.2),
    "target until 0.6": Variant(end=0.6),
    "zero from 0.9": Variant(zero=0.9),
    "first rate 1": Variant(rate=1.0),
    "first rate 100": Variant(rate=100.0),
    "linear target": LinearTarget(),
    "full target": FullTarget(),
    "no fade": NoFade(),
}
METHODS = [*FADES, "default, lamp", "gmp", "gmp, lamp"]
TASKS = (("digits", 0.99, range(4)), ("digits", 0.98, range(4)), ("LeNet-5, MNIST, 8 epochs", 0.99, range(2)))
RUNS = [
    {"task": task, "method": method, "sparsity": sparsity, "seed": seed}
    for task, sparsity, seeds in TASKS
    for seed in seeds
    for method in METHODS
]


def run(task: str, method: str, sparsity: float, seed: int) -> dict[str, Any]:
    """Train once, from an initialisation that depends on the seed alone."""
    torch.manual_seed(seed)
    if task == "digits":
        data, model, epochs, batch = digits(), fadeout.models.smallcnn(), 60, 64
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        scheduler = in_thirds(optimizer, epochs * data.steps(batch))
    else:
        data, model, epochs, batch, scheduler = mnist(), fadeout.models.lenet5(), 8, 128, None
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings: dict[str, Any] = {"sparsity": sparsity, "steps": epochs * data.steps(batch)}
    name, _, criterion = method.partition(", ")
    if criterion:
        settings["criterion"] = lamp
    if name == "gmp":
        pruner = GradualMagnitudePruning(model, optimizer, **settings)
    else:
        pruner = fadeout.SelectiveWeightDecay(model, optimizer, fade=FADES[name], **settings)
    train(
        model,
        optimizer,
        data,
        epochs=epochs,
        batch_size=batch,
        seed=seed,
        scheduler=scheduler,
    )
    before = accuracy(model, data.test_x, data.test_y)
    pruner.remove()
    return {"before": round(before, 2), "after": round(accuracy(model, data.test_x, data.test_y), 2)}


if __name__ == "__main__":
    sweep("fade-variants", RUNS, run)
