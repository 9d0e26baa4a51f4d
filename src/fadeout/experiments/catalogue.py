"""The experiments: one for each table and figure of the paper, and the project's own.

To add an experiment, add a function that yields its runs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

from fadeout.experiments.demo import Settings
from fadeout.experiments.paper import TITLES, Value, published
from fadeout.experiments.run import Run
from fadeout.experiments.tasks import task
from fadeout.methods.variants import VARIANTS

Kind = Literal["curve", "grid", "table"]

# What is left, in percent: the 22 targets of the paper's trade-off figures
LEFT = (90, 80, 70, 60, 50, 40, 30, 25, 20, 15, 10, 7.5, 5, 4, 3, 2.5, 2, 1.5, 1, 0.5, 0.2, 0.1)
TARGETS = tuple(round(1 - left / 100, 5) for left in LEFT)
_GRID_TASKS = ("resnet18-cifar10", "resnet20-cifar10", "resnet34-cifar100")


@dataclass(frozen=True)
class Experiment:
    """A table or figure.

    Attributes:
        name: on the command line.
        title: what it shows.
        kind: how the report shows it: a curve over targets, a grid of strengths, or a table.
        generate: yields its runs.
    """

    name: str
    title: str
    kind: Kind
    generate: Callable[[], Iterator[Run]]

    def published(self) -> list[Value]:
        """What the paper has for it."""
        if self.name in TITLES:
            return published(self.name)
        counted = [run for run in self.runs() if run.of == "parameters"]  # as the paper's targets are
        networks = {(run.model, run.width, run.structure, run.sparsity) for run in counted}
        similar = published("cifar10-tradeoff", source="Table 3")
        return [v for v in similar if (v.network, v.width, v.structure, v.sparsity) in networks]

    def runs(self) -> list[Run]:
        """Its runs, each once."""
        return list({run.hash: run for run in self.generate()}.values())


EXPERIMENTS: dict[str, Experiment] = {}
"""By name, in the order in which a report shows them."""

Generate = Callable[[], Iterator[Run]]


def experiment(kind: Kind, title: str = "") -> Callable[[Generate], Generate]:
    """Enter a function that yields runs; its name and the paper's title are the experiment's."""

    def enter(generate: Generate) -> Generate:
        name = generate.__name__.replace("_", "-")
        EXPERIMENTS[name] = Experiment(name, title or TITLES[name], kind, generate)
        return generate

    return enter


def _collapsing(name: str, **changes: object) -> Run:
    """A structured run in which a layer may collapse, as in the paper."""
    return task(name, **changes, **({"min_channels": 0} if changes.get("structure") == "channels" else {}))


def _published(experiment: str) -> list[tuple[float, float]]:
    """The strengths of a grid of the paper, (a_max, a_min), row by row."""
    pairs = {(v.a_max, v.a_min): None for v in published(experiment)}
    return [(high, low) for high, low in pairs if high is not None and low is not None]


# The paper's ----------------------------------------------------------------------------------------------


@experiment("table")
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


@experiment("table")
def imagenet() -> Iterator[Run]:
    """ResNet-50: 50, 90 and 97.5 % of the weights; 10, 25, 50 and 80 % of the parameters by channels."""
    for target, method in product((0.5, 0.9, 0.975), ("han", "rewinding", "swd", "auto")):
        yield task("resnet50-imagenet", method=method, sparsity=target)
    for target, method in product((0.1, 0.25, 0.5, 0.8), ("liu", "rewinding", "swd", "auto")):
        yield _collapsing("resnet50-imagenet", method=method, structure="channels", sparsity=target)


@experiment("curve")
def cifar10_tradeoff() -> Iterator[Run]:
    """All targets, 64 and 16 maps, unstructured and structured, the paper's three methods, auto and GMP."""
    for name, structure in product(("resnet20-cifar10", "resnet20-16-cifar10"), ("elements", "channels")):
        base = "han" if structure == "elements" else "liu"
        for target, method in product(TARGETS, (base, "rewinding", "swd", "auto", "gmp")):
            yield _collapsing(name, method=method, structure=structure, sparsity=target)


@experiment("table", "ResNet-20 with 16 maps on CIFAR-10, 90 %, every method of the paper")
def cifar10_short() -> Iterator[Run]:
    """One of each at 90 %, 16 maps: a small part of the trade-off, to be shortened."""
    for structure, base in (("elements", "han"), ("channels", "liu")):
        for method in ("swd", "auto", "progressive", base, "rewinding"):
            yield task("resnet20-16-cifar10", method=method, structure=structure, sparsity=0.9)


@experiment("grid")
def lenet_grid() -> Iterator[Run]:
    """Both targets and all strengths of the paper's grid, and ``auto``."""
    for target in (0.9, 0.99):
        for a_max, a_min in product((1e1, 1e2, 1e3, 1e4), (1e-1, 1e-2, 1e-3, 1e-4)):
            yield task("lenet5-mnist", method="swd", sparsity=target, a_min=a_min, a_max=a_max)
        for method in ("auto", "progressive"):
            yield task("lenet5-mnist", method=method, sparsity=target)


@experiment("grid")
def extended_grid() -> Iterator[Run]:
    """Strengths that grow and that fall, 90 %."""
    starts = (1e4, 1e3, 1e2, 1e1, 1e0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
    for a_max, a_min in product((1e1, 1e2, 1e3, 1e4, 1e5), starts):
        yield task("resnet20-cifar10", method="swd", a_min=a_min, a_max=a_max)


@experiment("grid")
def structured_grid() -> Iterator[Run]:
    """Channels at 75 and 90 %."""
    for target, (a_max, a_min) in product((0.75, 0.9), _published("structured-grid")):
        yield _collapsing(
            "resnet20-cifar10", method="swd", structure="channels", sparsity=target, a_min=a_min, a_max=a_max
        )


@experiment("grid")
def unstructured_grids() -> Iterator[Run]:
    """Single weights at 90 %: ResNet-18 and ResNet-20 on CIFAR-10, ResNet-34 on CIFAR-100."""
    for name, (a_max, a_min) in product(_GRID_TASKS, _published("unstructured-grids")):
        yield task(name, method="swd", a_min=a_min, a_max=a_max)


@experiment("grid")
def structured_grids() -> Iterator[Run]:
    """Channels at 90 %: the same networks."""
    for name, (a_max, a_min) in product(_GRID_TASKS, _published("structured-grids")):
        yield _collapsing(name, method="swd", structure="channels", a_min=a_min, a_max=a_max)


@experiment("curve")
def strengths() -> Iterator[Run]:
    """Four pairs of strengths over all targets, 16 maps."""
    for target, a_min, a_max in product(TARGETS, (0.1, 1.0), (1e4, 5e4)):
        yield task("resnet20-16-cifar10", method="swd", sparsity=target, a_min=a_min, a_max=a_max)


@experiment("curve")
def cora() -> Iterator[Run]:
    """Magnitude pruning, SWD, GMP and this library's fades; more seeds where little is left."""
    for seed in range(10):
        methods = ("auto", "progressive", "gmp", "swd", "han")
        for target in TARGETS if seed < 3 else TARGETS[-4:]:
            for method in methods if seed < 5 else methods[:3]:  # the others are far behind there
                yield task("gcn-cora", method=method, sparsity=target, seed=seed)


@experiment("curve")
def ablation() -> Iterator[Run]:
    """Plain decay, decay that grows everywhere, and SWD; no fine-tuning."""
    for target in (0.25, 0.5, 0.8, 0.95):
        for method in ("one_shot", "growing_decay", "swd"):
            yield task("resnet20-cifar10", method=method, sparsity=target)


@experiment("table")
def cost() -> Iterator[Run]:
    """Seconds of an epoch without pruning, and with SWD on weights and on channels."""
    for name, epochs in (("resnet50-imagenet", 5), ("resnet20-cifar10", 50)):
        yield task(name, method="dense", epochs=epochs)
        for structure in ("elements", "channels"):
            yield task(name, method="swd", structure=structure, epochs=epochs)


# The project's own ----------------------------------------------------------------------------------------


@experiment("curve", "A small network on digits: the runs of fadeout demo")
def demo() -> Iterator[Run]:
    """Magnitude pruning at once and in rounds, and ``auto``; then whole channels."""
    yield from Settings().compared()
    yield from Settings().cut()


@experiment("curve", "LeNet-5 on MNIST at extreme sparsity, a tenth of the paper's epochs")
def lenet_mnist() -> Iterator[Run]:
    """All methods of equal budget at four targets, three seeds, and the dense network."""
    methods = ("auto", "gmp", "gmp_lamp", "acdc", "rigl", "st3", "progressive", "swd")
    for seed, target, method in product(range(3), (0.99, 0.995, 0.98, 0.998), methods):
        yield task("lenet5-mnist", method=method, sparsity=target, seed=seed, epochs=20)
    yield task("lenet5-mnist", method="dense", epochs=20)


@experiment("table", "ResNet-20 with 16 maps on CIFAR-10, 12 epochs, beside the strongest rivals")
def cifar10_rivals() -> Iterator[Run]:
    """Methods of equal budget, then those that take longer; two more seeds of ours and of the best rivals."""
    name = "resnet20-16-cifar10-12"
    yield task(name, method="dense")
    weights = ("auto", "gmp_lamp", "acdc", "st3", "rigl", "gmp", "progressive", "swd", "pat")
    weights += ("acdc_lamp", "st3_lamp")  # where a norm follows, magnitudes can empty a layer
    for target, method in product((0.95, 0.9, 0.98), weights):
        yield task(name, method=method, sparsity=target)
    channels = ("auto", "gmp", "greg", "hesso", "liu", "swd", "depgraph")
    for target, method in product((0.5, 0.75), channels):
        yield task(name, method=method, structure="channels", sparsity=target)
    for seed, target, method in product((1, 2), (0.95, 0.9, 0.98), ("auto", "gmp_lamp", "st3_lamp")):
        yield task(name, method=method, sparsity=target, seed=seed)
    for seed, target, method in product((1, 2), (0.5, 0.75), ("auto", "gmp", "greg")):
        yield task(name, method=method, structure="channels", sparsity=target, seed=seed)
    for method in ("han", "rewinding"):
        yield task(name, method=method, sparsity=0.95)


@experiment(
    "table", "Residual branches that begin at zero: ResNet-20 with 16 maps on CIFAR-10, half by channels"
)
def zero_branches() -> Iterator[Run]:
    """The same network with ordinary branches and with such that begin at zero, dense and pruned."""
    short = {"structure": "channels", "sparsity": 0.5, "epochs": 4}
    for seed, method, residual in product(range(3), ("auto", "dense"), ("plain", "zero")):
        yield task("resnet20-16-cifar10-12", method=method, residual=residual, seed=seed, **short)


@experiment("table", "What the default fade should do with whole channels")
def channel_fades() -> Iterator[Run]:
    """Three targets: a small network on digits, and ResNet-20 for three short epochs of CIFAR-10."""
    fades = [
        {"method": "auto"},
        {"method": "progressive"},
        {"method": "variant", "fade": "growing target"},
        {"method": "swd", "a_min": 1e2, "a_max": 1e6},
        {"method": "gmp"},
    ]
    more = [
        {"method": "variant", "fade": "target from 0 until 0.4"},
        {"method": "swd", "a_min": 1e-1, "a_max": 1e5},
    ]
    for seed, target, fade in product(range(3), (0.9, 0.75, 0.5), fades + more):
        yield task("digits", structure="channels", sparsity=target, seed=seed, **fade)
    short = {"epochs": 3, "batch_size": 64, "steps": 312}
    for target, fade in product((0.9, 0.75, 0.5), fades):
        yield task("resnet20-16-cifar10", structure="channels", sparsity=target, **short, **fade)


@experiment("table", "What else the default fade could be: one thing changed at a time")
def fade_variants() -> Iterator[Run]:
    """Variants, LAMP and GMP: a small network on digits, and LeNet-5 on MNIST for 8 epochs."""
    fades = [
        {"method": method, "criterion": criterion}
        for method in ("latent", "progressive", "gmp")
        for criterion in ("magnitude", "lamp")
    ]
    fades += [
        {"method": "variant", "fade": name}
        for name in VARIANTS
        if not name.endswith("until 0.4") and not name.startswith("latents")
    ]
    for target, seed, fade in product((0.99, 0.98), range(4), fades):
        yield task("digits", norm=False, sparsity=target, seed=seed, **fade)
    for seed, fade in product(range(2), fades):
        yield task("lenet5-mnist", sparsity=0.99, seed=seed, epochs=8, **fade)


@experiment("table", "What latent weights owe to each of their constants, on held-out training data")
def latent_variants() -> Iterator[Run]:
    """Latent weights, variants and rivals, without a look at the test data: Cora, LeNet-5 on MNIST."""
    fades = [
        {"method": method, "criterion": criterion}
        for method in ("latent", "gmp")
        for criterion in ("magnitude", "lamp")
    ]
    fades += [{"method": "progressive"}, {"method": "st3"}]
    fades += [{"method": "variant", "fade": name} for name in VARIANTS if name.startswith("latents")]
    for target, seed, fade in product((0.99, 0.998, 0.999), range(3), fades):
        yield task("gcn-cora", sparsity=target, seed=seed, validation=True, **fade)
    for seed, fade in product(range(2), fades):
        yield task("lenet5-mnist", sparsity=0.99, seed=seed, epochs=8, validation=True, **fade)


@experiment("table", "Widths in multiples, and coupled, against any widths, at equal time in onnxruntime")
def rounding() -> Iterator[Run]:
    """Asked for 2 and 4 times as fast: a small network on digits, ResNet-20 on CIFAR-10, 300 steps."""
    tasks = {
        "digits": {"time_batch": 1024},
        "resnet20-16-cifar10-12": {"time_batch": 16, "epochs": 3, "steps": 100},
    }
    fast = {"structure": "channels", "of": "time", "engine": "onnxruntime"}
    for (name, own), seed, target, multiple in product(tasks.items(), range(3), (0.5, 0.75), (1, 16, 8)):
        yield task(name, multiple_of=multiple, sparsity=target, seed=seed, **own, **fast)
    name, own = "resnet20-16-cifar10-12", tasks["resnet20-16-cifar10-12"]  # the digits' network adds nothing
    for seed, target in product(range(3), (0.5, 0.75)):
        yield task(name, multiple_of=16, couple=True, sparsity=target, seed=seed, **own, **fast)


@experiment("table", "Widths in multiples against any widths, at equal numbers of parameters")
def rounding_by_size() -> Iterator[Run]:
    """What multiples cost those who do not ask for time: ResNet-20 on CIFAR-10, 300 steps."""
    for seed, target, multiple in product(range(3), (0.75, 0.9), (1, 16, 8)):
        asked = {"structure": "channels", "sparsity": target, "multiple_of": multiple}
        yield task("resnet20-16-cifar10-12", seed=seed, epochs=3, steps=100, **asked)
