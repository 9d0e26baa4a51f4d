"""How long Channels takes to bind a network, and which part of a training step it takes then.

    python benchmarks/binding.py

A network is bound once in a training: its forward is recorded twice, and what can go is found. The clock of
a step starts and stops in the optimizer's own hooks, right before and right after those of the pruner.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import trainings
from harness import at_step, quartiles, surroundings
from rows import Part, Row
from stopwatch import Stopwatch
from trainings import Training

import fadeout

STEPS = 1000  # of the training; the middle one is timed, where half of the target is reached


@dataclass(frozen=True)
class Case:
    """A network to bind.

    Args:
        build: makes it, its batch and its optimizer.
        by: ranks the channels; see :class:`fadeout.Channels`.
    """

    build: Callable[[], Training]
    by: Any = None


def vit(batch: int = 16, size: int = 224, patch: int = 16, dim: int = 768, depth: int = 12) -> Training:
    """A vision transformer of the size "base", as on ImageNet."""
    build = partial(fadeout.models.vit, 1000, size, patch, dim, depth, heads=12)
    return trainings.on_images(build, (3, size, size), batch)


CASES = {
    "ResNet-50, batch 16": Case(trainings.resnet50),
    "ViT-B/16, batch 16, by norm": Case(vit, by="norm"),
}
QUICK: dict[str, Any] = {
    "cases": {
        "ResNet-50": Case(partial(trainings.resnet50, 4, 2, 32)),
        "ViT": Case(partial(vit, 2, 16, 8, 48, 4), by="norm"),
    },
    "binds": 2,
    "steps": 3,
}


def measure(cases: Mapping[str, Case] = CASES, binds: int = 3, steps: int = 9) -> Part:
    """Time the construction of a pruner, and its hooks in a step.

    Args:
        cases: by name.
        binds: how often each is bound.
        steps: that count, of the optimizer; a whole one, with its passes, is timed once.
    """
    rows, facts, threads = [], {}, torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, case in cases.items():
            bound, hooks, rest = _time(case, binds, steps)
            both = [1e3 * (each + quartiles(hooks)[1]) for each in quartiles(bound)]
            share = [each / (each + rest) for each in quartiles(hooks)]
            rows += [
                Row(f"{name}: bound, and one step of Channels", both, "ms", at_most=5000),
                Row(f"{name}: share of a training step", share, "%", at_most=0.02),
            ]
            facts[name] = {"bound": quartiles(bound), "hooks": quartiles(hooks), "rest of a step": rest}
    finally:
        torch.set_num_threads(threads)
    about = (
        "A pruner with `Channels` is built, and takes steps in the middle of the training: 50 % of the "
        "parameters are to go. Random images of 224 by 224. On one thread, by the process's own time, which "
        "is about what one idle core would take, however busy the machine is."
    )
    return Part("Binding", about, rows, {"cases": facts})


def _time(case: Case, binds: int, steps: int) -> tuple[list[float], list[float], float]:
    """Seconds to bind, of the hooks in each step, and of the rest of a whole step."""
    training = case.build()
    structure = fadeout.Channels(training.example, by=case.by)

    def bind() -> fadeout.SelectiveWeightDecay:
        return fadeout.SelectiveWeightDecay(
            training.model, training.optimizer, sparsity=0.5, steps=STEPS, structure=structure
        )

    bound = []
    for _ in range(binds):
        start = time.process_time()
        bind().detach()
        bound.append(time.process_time() - start)
    with Stopwatch(training.optimizer, time.process_time) as watch:
        pruner = bind()
    at_step(pruner, STEPS // 2)
    start = time.process_time()
    training.backward()
    training.optimizer.step()
    rest = time.process_time() - start - watch.seconds
    hooks = []
    for _ in range(steps):
        training.other_gradients()
        training.optimizer.step()
        hooks.append(watch.seconds)
    return bound, hooks, rest


if __name__ == "__main__":
    print(surroundings())
    found = measure()
    print(found.text())
    print(found.facts)
