"""Which part of a whole training step the pruner takes.

    python benchmarks/training_step.py [--network NAME] [--pruners NAME ...] [--short] [--one-thread]

The clock starts and stops in the optimizer's own hooks, right before and right after those of the pruner.
With ``--one-thread`` it is that of the process, which other processes disturb less than the one on the wall.
"""

import argparse
import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import trainings
from harness import at_step, means, quartiles, surroundings
from rows import Part, Row
from stopwatch import Stopwatch
from trainings import Training
from weights import fade

import fadeout

PRUNERS: dict[str, Callable[[Training], dict[str, Any]]] = {
    "Latent": lambda training: {"sparsity": 0.9},
    "Progressive": lambda training: {"sparsity": 0.9, "fade": fadeout.Progressive()},
    "Blocks": lambda training: {"sparsity": 0.9, "structure": fadeout.Blocks(16, 16)},
    "NM": lambda training: {"structure": fadeout.NM(2, 4)},
    "Channels": lambda training: {"sparsity": 0.5, "structure": fadeout.Channels(training.example)},
}
LATENT_LIMIT = 0.03  # of a large network's step: the latents go in and out
POSITIONS: dict[str, Callable[[int], int]] = {
    "early": lambda steps: 10,
    "the middle": lambda steps: steps // 2,
    "the last tenth": lambda steps: round(0.9 * steps),
}


@dataclass(frozen=True)
class Case:
    """A network to train.

    Args:
        build: makes it, its batch and its optimizer.
        steps: of its whole training in the paper: they decide whether the pruner compiles.
        pruners: of :data:`PRUNERS`.
        whole: complete steps at each position.
        hooks: optimizer steps at each position, on shuffled gradients: where a complete step takes seconds
            and the pruner milliseconds, these are timed more often.
        limit: the fraction of a step that the pruner may take.
    """

    build: Callable[[], Training]
    steps: int
    pruners: tuple[str, ...]
    whole: int
    hooks: int
    limit: float


_WEIGHTS = ("Latent", "Progressive")
_ALL = (*_WEIGHTS, "Channels")
_TILES = ("Blocks", "NM")
CASES = {
    "ResNet-20, 64 maps, batch 128": Case(trainings.resnet20, 117_000, _ALL, whole=2, hooks=18, limit=0.02),
    "ResNet-50, batch 16": Case(trainings.resnet50, 450_000, (*_ALL, *_TILES), whole=2, hooks=18, limit=0.02),
    "LeNet-5, batch 128": Case(trainings.lenet5, 93_600, _WEIGHTS, whole=100, hooks=0, limit=0.1),
    "GCN, Cora": Case(trainings.gcn, 2000, _WEIGHTS, whole=100, hooks=0, limit=0.1),
}
QUICK: dict[str, Any] = {
    "settle": 1,
    "cases": {
        "ResNet-20": Case(partial(trainings.resnet20, 4, 2, 8), 1000, _ALL, whole=1, hooks=2, limit=0.02),
        "ResNet-50": Case(
            partial(trainings.resnet50, 4, 2, 32), 1000, (*_ALL, *_TILES), whole=1, hooks=2, limit=0.02
        ),
        "LeNet-5": Case(partial(trainings.lenet5, 2), 1000, _WEIGHTS, whole=2, hooks=0, limit=0.1),
        "GCN": Case(partial(trainings.gcn, 50, 20, 100), 1000, _WEIGHTS, whole=2, hooks=0, limit=0.1),
    },
}


def measure(
    cases: Mapping[str, Case] = CASES, settle: int = 10, clock: Callable[[], float] = time.perf_counter
) -> Part:
    """Time complete steps, and the pruner's hooks in them.

    Args:
        cases: by name.
        settle: optimizer steps before those that count.
        clock: gives seconds.
    """
    rows, facts = [], {}
    for name, case in cases.items():
        plain: list[float] = []
        hooks: dict[str, list[float]] = {}
        for pruner in case.pruners:
            _time(case, pruner, settle, clock, plain, hooks)
        rest = quartiles(plain)
        for what, seconds in hooks.items():
            share = [hook / (hook + rest[1]) for hook in quartiles(means(seconds))]
            limit = max(case.limit, LATENT_LIMIT) if what.startswith("Latent") else case.limit
            rows.append(Row(f"{name}, {what}", share, "%", at_most=limit))
        timed = {what: quartiles(means(seconds)) for what, seconds in hooks.items()}
        facts[name] = {"steps": case.steps, "rest of a step": rest, "hooks": timed}
    about = (
        "The time inside the pruner's hooks over that of a whole step (forward, backward, optimizer and "
        "hooks), at the tenth step, in the middle and in the last tenth of training. Random images; "
        f"{'the real Cora' if trainings.real_cora() else 'a random graph of the size of Cora'}."
    )
    return Part("Share of a training step", about, rows, {"cases": facts})


def _time(
    case: Case,
    kind: str,
    settle: int,
    clock: Callable[[], float],
    plain: list[float],
    hooks: dict[str, list[float]],
) -> None:
    """Add the seconds of this kind of pruner: of the hooks, and of the rest of the complete steps."""
    training = case.build()
    training.backward()  # the first one plans its convolutions
    with Stopwatch(training.optimizer, clock) as watch:
        pruner = fadeout.SelectiveWeightDecay(
            training.model, training.optimizer, steps=case.steps, **PRUNERS[kind](training)
        )
    before = copy.deepcopy(training.model.state_dict())
    for position, step in POSITIONS.items():
        training.model.load_state_dict(before)
        at_step(pruner, step(case.steps))
        if kind == "Progressive":
            fade(training.model.parameters(), pruner.sparsity_now)
        seconds = hooks[f"{kind}, {position}"] = []
        for _ in range(settle):  # the pruner compiles, and finds its threshold
            training.other_gradients()
            training.optimizer.step()
        for _ in range(case.whole):
            training.another_batch()
            start = clock()
            training.backward()
            training.optimizer.step()
            plain.append(clock() - start - watch.seconds)
            seconds.append(watch.seconds)
        for _ in range(case.hooks):
            training.other_gradients()
            training.optimizer.step()
            seconds.append(watch.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--network", default="", help="only those whose name begins like this")
    parser.add_argument("--pruners", nargs="+", choices=PRUNERS, help="by default all of a network")
    parser.add_argument("--short", action="store_true", help="one whole step and six of the optimizer")
    parser.add_argument("--one-thread", action="store_true", help="the processor's time on one thread")
    arguments = parser.parse_args()
    cases = {name: case for name, case in CASES.items() if name.startswith(arguments.network)}
    if arguments.pruners:
        cases = {name: replace(case, pruners=tuple(arguments.pruners)) for name, case in cases.items()}
    if arguments.short:
        cases = {name: replace(case, whole=1, hooks=6) for name, case in cases.items()}
    if arguments.one_thread:
        torch.set_num_threads(1)
    print(surroundings())
    found = measure(cases, clock=time.process_time if arguments.one_thread else time.perf_counter)
    print(found.text())
    print(found.facts)


if __name__ == "__main__":
    main()
