"""One experiment for each table and figure of the paper: a function that returns its runs.

To add an experiment, add a function and name it in :data:`EXPERIMENTS`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

from fadeout.experiments.paper import TITLES, Value, published
from fadeout.experiments.run import Run
from fadeout.experiments.tasks import task

# What is left, in percent: the 22 targets of the paper's trade-off figures
LEFT = (90, 80, 70, 60, 50, 40, 30, 25, 20, 15, 10, 7.5, 5, 4, 3, 2.5, 2, 1.5, 1, 0.5, 0.2, 0.1)
TARGETS = tuple(round(1 - left / 100, 5) for left in LEFT)


def cora() -> Iterator[Run]:
    """Magnitude pruning, SWD, and beside them ``auto`` and GMP; five seeds where little is left."""
    for seed in range(5):
        for target in TARGETS if seed < 3 else TARGETS[-4:]:
            for method in ("auto", "gmp", "swd", "han"):
                yield task("gcn-cora", method=method, sparsity=target, seed=seed)


def lenet_grid() -> Iterator[Run]:
    """Both targets and all strengths of the paper's grid, and ``auto``."""
    for target in (0.9, 0.99):
        for a_max, a_min in product((1e1, 1e2, 1e3, 1e4), (1e-1, 1e-2, 1e-3, 1e-4)):
            yield task("lenet5-mnist", method="swd", sparsity=target, a_min=a_min, a_max=a_max)
        yield task("lenet5-mnist", method="auto", sparsity=target)


def cifar10_tradeoff() -> Iterator[Run]:
    """All targets, 64 and 16 maps, unstructured and structured, the paper's three methods, auto and GMP."""
    for name, structure in product(("resnet20-cifar10", "resnet20-16-cifar10"), ("elements", "channels")):
        base = "han" if structure == "elements" else "liu"
        for target, method in product(TARGETS, (base, "rewinding", "swd", "auto", "gmp")):
            yield _collapsing(name, method=method, structure=structure, sparsity=target)


def cifar10_short() -> Iterator[Run]:
    """One of each at 90 %, 16 maps: a small part of the trade-off, to be shortened."""
    for method, structure in (
        ("swd", "elements"),
        ("auto", "elements"),
        ("han", "elements"),
        ("rewinding", "elements"),
        ("swd", "channels"),
        ("auto", "channels"),
        ("liu", "channels"),
        ("rewinding", "channels"),
    ):
        yield task("resnet20-16-cifar10", method=method, structure=structure, sparsity=0.9)


def imagenet() -> Iterator[Run]:
    """ResNet-50: 50, 90 and 97.5 % of the weights; 10, 25, 50 and 80 % of the parameters by channels."""
    for target, method in product((0.5, 0.9, 0.975), ("han", "rewinding", "swd", "auto")):
        yield task("resnet50-imagenet", method=method, sparsity=target)
    for target, method in product((0.1, 0.25, 0.5, 0.8), ("liu", "rewinding", "swd", "auto")):
        yield _collapsing("resnet50-imagenet", method=method, structure="channels", sparsity=target)


def comparison() -> Iterator[Run]:
    """The paper's own lines of Table 1; structured, ImageNet has 180 epochs and a warm restart."""
    for target in (0.5, 0.9, 0.975):
        yield task("resnet50-imagenet", method="swd", sparsity=target)
    longer = {"structure": "channels", "epochs": 180, "learning_rates": "restarts"}
    for target in (0.25, 0.5):
        yield _collapsing("resnet50-imagenet", method="swd", sparsity=target, **longer)
    yield _collapsing("resnet50-imagenet", method="liu", structure="channels", sparsity=0.5)
    for name, method, target in (
        ("resnet20-16-cifar10", "swd", 0.3),
        ("resnet20-16-cifar10", "swd", 0.7),
        ("resnet20-cifar10", "liu", 0.5),
        ("resnet20-cifar10", "swd", 0.5),
        ("resnet20-cifar10", "swd", 0.98),
    ):
        yield _collapsing(name, method=method, structure="channels", sparsity=target)


def extended_grid() -> Iterator[Run]:
    """Strengths that grow and that fall, 90 %."""
    starts = (1e4, 1e3, 1e2, 1e1, 1e0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
    for a_max, a_min in product((1e1, 1e2, 1e3, 1e4, 1e5), starts):
        yield task("resnet20-cifar10", method="swd", a_min=a_min, a_max=a_max)


def structured_grid() -> Iterator[Run]:
    """Channels at 75 and 90 %."""
    for target, (a_max, a_min) in product((0.75, 0.9), _published("structured-grid")):
        yield _collapsing(
            "resnet20-cifar10",
            method="swd",
            structure="channels",
            sparsity=target,
            a_min=a_min,
            a_max=a_max,
        )


def unstructured_grids() -> Iterator[Run]:
    """Single weights at 90 %: ResNet-18 and ResNet-20 on CIFAR-10, ResNet-34 on CIFAR-100."""
    for name, (a_max, a_min) in product(_GRID_TASKS, _published("unstructured-grids")):
        yield task(name, method="swd", a_min=a_min, a_max=a_max)


def structured_grids() -> Iterator[Run]:
    """Channels at 90 %: the same networks."""
    for name, (a_max, a_min) in product(_GRID_TASKS, _published("structured-grids")):
        yield _collapsing(name, method="swd", structure="channels", a_min=a_min, a_max=a_max)


def strengths() -> Iterator[Run]:
    """Four pairs of strengths over all targets, 16 maps."""
    for target, a_min, a_max in product(TARGETS, (0.1, 1.0), (1e4, 5e4)):
        yield task("resnet20-16-cifar10", method="swd", sparsity=target, a_min=a_min, a_max=a_max)


def ablation() -> Iterator[Run]:
    """Plain decay, decay that grows everywhere, and SWD; no fine-tuning."""
    for target in (0.25, 0.5, 0.8, 0.95):
        for method in ("one_shot", "growing_decay", "swd"):
            yield task("resnet20-cifar10", method=method, sparsity=target)


def cost() -> Iterator[Run]:
    """Seconds of an epoch without pruning, and with SWD on weights and on channels."""
    for name, epochs in (("resnet50-imagenet", 5), ("resnet20-cifar10", 50)):
        yield task(name, method="dense", epochs=epochs)
        for structure in ("elements", "channels"):
            yield task(name, method="swd", structure=structure, epochs=epochs)


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Attributes:
        name: on the command line.
        title: what it shows.
        kind: how the report shows it: a curve over targets, a grid of strengths, or a table.
        generate: yields its runs.
    """

    name: str
    title: str
    kind: Literal["curve", "grid", "table"]
    generate: Callable[[], Iterator[Run]]

    def published(self) -> list[Value]:
        """What the paper has for it."""
        if self.name in TITLES:
            return published(self.name)
        networks = {(run.model, run.width, run.structure, run.sparsity) for run in self.runs()}
        similar = published("cifar10-tradeoff", source="Table 3")
        return [v for v in similar if (v.network, v.width, v.structure, v.sparsity) in networks]

    def runs(self) -> list[Run]:
        """Its runs, each once."""
        return list({run.hash: run for run in self.generate()}.values())


_KINDS: dict[Callable[[], Iterator[Run]], Literal["curve", "grid", "table"]] = {
    comparison: "table",
    imagenet: "table",
    cifar10_tradeoff: "curve",
    cifar10_short: "table",
    lenet_grid: "grid",
    extended_grid: "grid",
    structured_grid: "grid",
    unstructured_grids: "grid",
    structured_grids: "grid",
    strengths: "curve",
    cora: "curve",
    ablation: "curve",
    cost: "table",
}
EXPERIMENTS: dict[str, Experiment] = {}
for _generate, _kind in _KINDS.items():
    _name = _generate.__name__.replace("_", "-")
    _title = TITLES.get(_name, "ResNet-20 with 16 maps on CIFAR-10, 90 %, every method of the paper")
    EXPERIMENTS[_name] = Experiment(_name, _title, _kind, _generate)

_GRID_TASKS = ("resnet18-cifar10", "resnet20-cifar10", "resnet34-cifar100")


def _collapsing(name: str, **changes: object) -> Run:
    """A structured run in which a layer may collapse, as in the paper."""
    return task(name, **changes, **({"min_channels": 0} if changes.get("structure") == "channels" else {}))


def _published(experiment: str) -> list[tuple[float, float]]:
    """The strengths of a grid of the paper, (a_max, a_min), row by row."""
    pairs = {(v.a_max, v.a_min): None for v in published(experiment)}
    return [(high, low) for high, low in pairs if high is not None and low is not None]
