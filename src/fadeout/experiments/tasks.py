"""Tasks: a network, its data and how it is trained, by name, with the settings of the paper's section 4."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from typing import Any

from fadeout._checks import known
from fadeout.experiments.run import Run
from fadeout.methods.registry import METHODS
from fadeout.structures.nm import NM

_CIFAR = Run(
    data="cifar10", model="resnet20", width=64, epochs=300, batch_size=128, fine_tune=15, last_fine_tune=50
)

TASKS: dict[str, Run] = {
    "digits": Run(),
    "lenet5-mnist": Run(
        data="mnist",
        model="lenet5",
        epochs=200,
        batch_size=128,
        momentum=0.0,
        weight_decay=0.0,
        learning_rates="constant",
        mu=5e-4,
        evaluate_every=5,
    ),
    "resnet20-cifar10": _CIFAR,
    "resnet20-16-cifar10": replace(_CIFAR, width=16),
    "resnet20-16-cifar10-12": replace(
        _CIFAR,
        width=16,
        epochs=12,
        learning_rates="cosine_to_zero",
        precision="bfloat16",
        fine_tune=1,
        last_fine_tune=2,
        fine_tune_lr=1e-3,
    ),
    "resnet18-cifar10": replace(_CIFAR, model="resnet18"),
    "resnet34-cifar100": replace(_CIFAR, model="resnet34", data="cifar100"),
    "resnet50-imagenet": Run(
        data="imagenet",
        model="resnet50",
        width=64,
        epochs=90,
        batch_size=256,
        weight_decay=1e-4,
        fine_tune=5,
        last_fine_tune=15,
        smooth_l1=1e-5,
    ),
    "gcn-cora": Run(
        data="cora",
        model="gcn",
        width=16,
        epochs=2000,
        batch_size=1,
        optimizer="adam",
        lr=0.01,
        momentum=0.0,
        learning_rates="constant",
        fine_tune=200,
        last_fine_tune=2000,
        evaluate_every=100,
    ),
}

# a_min and a_max of the paper, by network, width, data and structure
STRENGTHS: dict[tuple[str, int | None, str, str], tuple[float, float]] = {
    ("resnet50", 64, "imagenet", "elements"): (1e-1, 1e5),
    ("resnet50", 64, "imagenet", "channels"): (1e1, 1e4),
    ("resnet20", 64, "cifar10", "elements"): (1e-1, 1e5),
    ("resnet20", 64, "cifar10", "channels"): (1e2, 1e7),
    ("resnet20", 16, "cifar10", "elements"): (1e0, 1e4),
    ("resnet20", 16, "cifar10", "channels"): (1e2, 1e6),
    ("gcn", 16, "cora", "elements"): (1e-1, 1e6),
    ("lenet5", None, "mnist", "elements"): (1e-1, 1e4),  # the best of its grid at both targets
}


def task(name: str, **changes: object) -> Run:
    """A run of a task, with some fields changed; the paper's strengths where it names them.

    The sparsity of ``nm`` is 1 - n / m if none is given.

    >>> run = task("gcn-cora", method="swd", sparsity=0.99)
    >>> run.a_min, run.a_max, run.epochs
    (0.1, 1000000.0, 2000)
    """
    known("task", name, TASKS)
    for field in changes:
        known("field", field, [field.name for field in fields(Run)])
    chosen: dict[str, Any] = {**TASKS[name].to_dict(), **changes}
    if chosen["method"] in METHODS and "a_min" in METHODS[chosen["method"]].options:
        key = (chosen["model"], chosen["width"], chosen["data"], chosen["structure"])
        low, high = STRENGTHS.get(key, (None, None))
        chosen["a_min"] = low if chosen["a_min"] is None else chosen["a_min"]
        chosen["a_max"] = high if chosen["a_max"] is None else chosen["a_max"]
    if chosen["structure"] == "channels" and chosen["data"] == "imagenet" and "last_fine_tune" not in changes:
        chosen["last_fine_tune"] = 40  # after its one removal
    if chosen["structure"] == "nm" and "sparsity" not in changes:
        chosen["sparsity"] = NM(chosen.get("n", Run.n), chosen.get("m", Run.m)).sparsity
    return Run(**chosen)


def grid(names: str | Sequence[str], *others: Sequence[Mapping[str, Any]], **axes: Any) -> Iterator[Run]:
    """Runs of a task, or of several, for all combinations of fields; the last one changes fastest.

    Args:
        others: after the axes, changes of several fields at a time.
        axes: the values of a field, as a tuple or a range; anything else is its value in all runs.

    >>> [(run.method, run.sparsity) for run in grid("digits", method=("gmp", "auto"), sparsity=(0.5, 0.9))]
    [('gmp', 0.5), ('gmp', 0.9), ('auto', 0.5), ('auto', 0.9)]
    """
    changes = [
        [{field: value} for value in (values if isinstance(values, tuple | range) else [values])]
        for field, values in axes.items()
    ]
    for name in [names] if isinstance(names, str) else names:
        for chosen in product(*changes, *others):
            yield task(name, **{field: value for each in chosen for field, value in each.items()})
