"""The experiments: one for each table and figure of the paper, and the project's own.

To add an experiment, add a function that yields its runs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from fadeout.experiments.demo import Settings
from fadeout.experiments.paper import TITLES, Value, published
from fadeout.experiments.run import Run
from fadeout.experiments.tasks import grid, task
from fadeout.methods.variants import VARIANTS

Kind = Literal["curve", "grid", "table"]

# What is left, in percent: the 22 targets of the paper's trade-off figures
LEFT = (90, 80, 70, 60, 50, 40, 30, 25, 20, 15, 10, 7.5, 5, 4, 3, 2.5, 2, 1.5, 1, 0.5, 0.2, 0.1)
TARGETS = tuple(round(1 - left / 100, 5) for left in LEFT)
# In channels, where a layer may collapse, as in the paper
CHANNELS: dict[str, Any] = {"structure": "channels", "min_channels": 0}
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


def _published(experiment: str) -> list[dict[str, Any]]:
    """The strengths of a grid of the paper, row by row."""
    pairs = {(v.a_min, v.a_max): None for v in published(experiment)}
    return [{"a_min": low, "a_max": high} for low, high in pairs if low is not None and high is not None]


def _with_both_criteria(*methods: str) -> list[dict[str, Any]]:
    return [
        {"method": name, "criterion": criterion} for name in methods for criterion in ("magnitude", "lamp")
    ]


# The paper's ----------------------------------------------------------------------------------------------


@experiment("table")
def comparison() -> Iterator[Run]:
    """The paper's own lines of Table 1; structured, ImageNet has 180 epochs and a warm restart."""
    yield from grid("resnet50-imagenet", method="swd", sparsity=(0.5, 0.9, 0.975))
    longer = {"epochs": 180, "learning_rates": "restarts", **CHANNELS}
    yield from grid("resnet50-imagenet", method="swd", sparsity=(0.25, 0.5), **longer)
    yield task("resnet50-imagenet", method="liu", sparsity=0.5, **CHANNELS)
    yield from grid("resnet20-16-cifar10", method="swd", sparsity=(0.3, 0.7), **CHANNELS)
    yield task("resnet20-cifar10", method="liu", sparsity=0.5, **CHANNELS)
    yield from grid("resnet20-cifar10", method="swd", sparsity=(0.5, 0.98), **CHANNELS)


@experiment("table")
def imagenet() -> Iterator[Run]:
    """ResNet-50: 50, 90 and 97.5 % of the weights; 10, 25, 50 and 80 % of the parameters by channels."""
    weights, channels = (("han", "rewinding", "swd", "auto"), ("liu", "rewinding", "swd", "auto"))
    yield from grid("resnet50-imagenet", sparsity=(0.5, 0.9, 0.975), method=weights)
    yield from grid("resnet50-imagenet", sparsity=(0.1, 0.25, 0.5, 0.8), method=channels, **CHANNELS)


@experiment("curve")
def cifar10_tradeoff() -> Iterator[Run]:
    """All targets, 64 and 16 maps, unstructured and structured, the paper's three methods, auto and GMP."""
    others = ("rewinding", "swd", "auto", "gmp")
    for name in ("resnet20-cifar10", "resnet20-16-cifar10"):
        yield from grid(name, sparsity=TARGETS, method=("han", *others))
        yield from grid(name, sparsity=TARGETS, method=("liu", *others), **CHANNELS)


@experiment("table", "ResNet-20 with 16 maps on CIFAR-10, 90 %, every method of the paper")
def cifar10_short() -> Iterator[Run]:
    """One of each at 90 %, 16 maps: a small part of the trade-off, to be shortened."""
    for structure, base in (("elements", "han"), ("channels", "liu")):
        methods = ("swd", "auto", "progressive", base, "rewinding")
        yield from grid("resnet20-16-cifar10", structure=structure, method=methods)


@experiment("grid")
def lenet_grid() -> Iterator[Run]:
    """Both targets and all strengths of the paper's grid, and ``auto``."""
    ends = {"a_max": (1e1, 1e2, 1e3, 1e4), "a_min": (1e-1, 1e-2, 1e-3, 1e-4)}
    for target in (0.9, 0.99):
        yield from grid("lenet5-mnist", method="swd", sparsity=target, **ends)
        yield from grid("lenet5-mnist", method=("auto", "progressive"), sparsity=target)


@experiment("grid")
def extended_grid() -> Iterator[Run]:
    """Strengths that grow and that fall, 90 %."""
    starts = (1e4, 1e3, 1e2, 1e1, 1e0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
    yield from grid("resnet20-cifar10", method="swd", a_max=(1e1, 1e2, 1e3, 1e4, 1e5), a_min=starts)


@experiment("grid")
def structured_grid() -> Iterator[Run]:
    """Channels at 75 and 90 %."""
    pairs = _published("structured-grid")
    yield from grid("resnet20-cifar10", pairs, method="swd", sparsity=(0.75, 0.9), **CHANNELS)


@experiment("grid")
def unstructured_grids() -> Iterator[Run]:
    """Single weights at 90 %: ResNet-18 and ResNet-20 on CIFAR-10, ResNet-34 on CIFAR-100."""
    yield from grid(_GRID_TASKS, _published("unstructured-grids"), method="swd")


@experiment("grid")
def structured_grids() -> Iterator[Run]:
    """Channels at 90 %: the same networks."""
    yield from grid(_GRID_TASKS, _published("structured-grids"), method="swd", **CHANNELS)


@experiment("curve")
def strengths() -> Iterator[Run]:
    """Four pairs of strengths over all targets, 16 maps."""
    ends = {"a_min": (0.1, 1.0), "a_max": (1e4, 5e4)}
    yield from grid("resnet20-16-cifar10", method="swd", sparsity=TARGETS, **ends)


@experiment("curve")
def cora() -> Iterator[Run]:
    """Magnitude pruning, SWD, GMP and this library's fades; more seeds where little is left."""
    methods = ("auto", "progressive", "gmp", "swd", "han")
    for seed in range(10):
        targets = TARGETS if seed < 3 else TARGETS[-4:]
        shown = methods if seed < 5 else methods[:3]  # the others are far behind there
        yield from grid("gcn-cora", seed=seed, sparsity=targets, method=shown)


@experiment("curve")
def ablation() -> Iterator[Run]:
    """Plain decay, decay that grows everywhere, and SWD; no fine-tuning."""
    methods = ("one_shot", "growing_decay", "swd")
    yield from grid("resnet20-cifar10", sparsity=(0.25, 0.5, 0.8, 0.95), method=methods)


@experiment("table")
def cost() -> Iterator[Run]:
    """Seconds of an epoch without pruning, and with SWD on weights and on channels."""
    for name, epochs in (("resnet50-imagenet", 5), ("resnet20-cifar10", 50)):
        yield task(name, method="dense", epochs=epochs)
        yield from grid(name, method="swd", structure=("elements", "channels"), epochs=epochs)


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
    targets = (0.99, 0.995, 0.98, 0.998)
    yield from grid("lenet5-mnist", seed=range(3), sparsity=targets, method=methods, epochs=20)
    yield task("lenet5-mnist", method="dense", epochs=20)


@experiment("table", "ResNet-20 with 16 maps on CIFAR-10, 12 epochs, beside the strongest rivals")
def cifar10_rivals() -> Iterator[Run]:
    """Methods of equal budget, then those that take longer; two more seeds of ours and of the best rivals."""
    name, targets = "resnet20-16-cifar10-12", (0.95, 0.9, 0.98)
    halves: dict[str, Any] = {"structure": "channels", "sparsity": (0.5, 0.75)}
    yield task(name, method="dense")
    weights = ("auto", "gmp_lamp", "acdc", "st3", "rigl", "gmp", "progressive", "swd", "pat")
    weights += ("acdc_lamp", "st3_lamp")  # where a norm follows, magnitudes can empty a layer
    yield from grid(name, sparsity=targets, method=weights)
    yield from grid(name, **halves, method=("auto", "gmp", "greg", "hesso", "liu", "swd", "depgraph"))
    yield from grid(name, seed=(1, 2), sparsity=targets, method=("auto", "gmp_lamp", "st3_lamp"))
    yield from grid(name, seed=(1, 2), **halves, method=("auto", "gmp", "greg"))
    yield from grid(name, method=("han", "rewinding"), sparsity=0.95)


@experiment(
    "table", "Residual branches that begin at zero: ResNet-20 with 16 maps on CIFAR-10, half by channels"
)
def zero_branches() -> Iterator[Run]:
    """The same network with ordinary branches and with such that begin at zero, dense and pruned."""
    short: dict[str, Any] = {"structure": "channels", "sparsity": 0.5, "epochs": 4}
    methods, residuals = ("auto", "dense"), ("plain", "zero")
    yield from grid("resnet20-16-cifar10-12", seed=range(3), method=methods, residual=residuals, **short)


@experiment("table", "What the default fade should do with whole channels")
def channel_fades() -> Iterator[Run]:
    """Three targets: a small network on digits, and ResNet-20 for three short epochs of CIFAR-10."""
    fades: list[dict[str, Any]] = [
        {"method": "auto"},
        {"method": "progressive"},
        {"method": "variant", "fade": "growing target"},
        {"method": "swd", "a_min": 1e2, "a_max": 1e6},
        {"method": "gmp"},
    ]
    more: list[dict[str, Any]] = [
        {"method": "variant", "fade": "target from 0 until 0.4"},
        {"method": "swd", "a_min": 1e-1, "a_max": 1e5},
    ]
    targets: dict[str, Any] = {"structure": "channels", "sparsity": (0.9, 0.75, 0.5)}
    yield from grid("digits", fades + more, seed=range(3), **targets)
    yield from grid("resnet20-16-cifar10", fades, epochs=3, batch_size=64, steps=312, **targets)


@experiment("table", "What else the default fade could be: one thing changed at a time")
def fade_variants() -> Iterator[Run]:
    """Variants, LAMP and GMP: a small network on digits, and LeNet-5 on MNIST for 8 epochs."""
    fades = _with_both_criteria("latent", "progressive", "gmp")
    fades += [
        {"method": "variant", "fade": name}
        for name in VARIANTS
        if not name.endswith("until 0.4") and not name.startswith("latents")
    ]
    yield from grid("digits", fades, norm=False, sparsity=(0.99, 0.98), seed=range(4))
    yield from grid("lenet5-mnist", fades, sparsity=0.99, seed=range(2), epochs=8)


@experiment("table", "What latent weights owe to each of their constants, on held-out training data")
def latent_variants() -> Iterator[Run]:
    """Latent weights, variants and rivals, without a look at the test data: Cora, LeNet-5 on MNIST."""
    fades = [*_with_both_criteria("latent", "gmp"), {"method": "progressive"}, {"method": "st3"}]
    fades += [{"method": "variant", "fade": name} for name in VARIANTS if name.startswith("latents")]
    yield from grid("gcn-cora", fades, sparsity=(0.99, 0.998, 0.999), seed=range(3), validation=True)
    yield from grid("lenet5-mnist", fades, sparsity=0.99, seed=range(2), epochs=8, validation=True)


@experiment("table", "Widths in multiples, and coupled, against any widths, at equal time in onnxruntime")
def rounding() -> Iterator[Run]:
    """Asked for 2 and 4 times as fast: a small network on digits, ResNet-20 on CIFAR-10, 300 steps."""
    fast: dict[str, Any] = {"structure": "channels", "of": "time", "engine": "onnxruntime"}
    fast |= {"seed": range(3), "sparsity": (0.5, 0.75)}
    short: dict[str, Any] = {"time_batch": 16, "epochs": 3, "steps": 100}
    yield from grid("digits", **fast, multiple_of=(1, 16, 8), time_batch=1024)
    yield from grid("resnet20-16-cifar10-12", **fast, multiple_of=(1, 16, 8), **short)
    # the digits' network adds nothing
    yield from grid("resnet20-16-cifar10-12", **fast, multiple_of=16, couple=True, **short)


@experiment("table", "Widths in multiples against any widths, at equal numbers of parameters")
def rounding_by_size() -> Iterator[Run]:
    """What multiples cost those who do not ask for time: ResNet-20 on CIFAR-10, 300 steps."""
    asked = {"structure": "channels", "sparsity": (0.75, 0.9), "multiple_of": (1, 16, 8)}
    yield from grid("resnet20-16-cifar10-12", seed=range(3), **asked, epochs=3, steps=100)
