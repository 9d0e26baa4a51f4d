"""The demo: every method on one small network, in a minute or two, on data that come along."""

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fadeout._checks import MissingExtraError
from fadeout.compaction.compact import compact
from fadeout.engines import Engine, time_networks
from fadeout.experiments.build import build_model
from fadeout.experiments.data import Dataset
from fadeout.experiments.demo.fading import Fading
from fadeout.experiments.disk.checkpoint import read_checkpoint
from fadeout.experiments.disk.run_folder import share_training
from fadeout.experiments.execute import execute
from fadeout.experiments.report.formatting import percent
from fadeout.experiments.run import Run
from fadeout.experiments.training import evaluate
from fadeout.graph.example import Example
from fadeout.masks import Masks
from fadeout.measure import measure
from fadeout.storage.network_file import save

NAMES = {"dense": "dense", "one_shot": "one-shot", "han": "iterative", "auto": "fadeout"}
"""What the demo calls the methods."""

ENGINES: dict[Engine, str] = {"pytorch": "PyTorch", "onnxruntime": "onnx\u00adruntime"}
"""Where the smaller networks are timed, if it is installed; where there is little room, names are broken."""


@dataclass(frozen=True)
class Settings:
    """How the demo trains.

    Attributes:
        learning_rate: for the first third of a training, then a tenth of it, then a hundredth.
        round_epochs, round_rate: how long and at which learning rate iterative pruning fine-tunes after each
            of its rounds. Han et al. take a tenth of the first learning rate.
        shown: the target whose fading weights are recorded.
        shrunk: the fractions of the parameters that are cut out in the second part.
        multiple_of: the widths of what is left there are multiples of it. (What "auto" would measure may
            differ between machines, and so would what the demo shows.)
    """

    epochs: int = 60
    batch_size: int = 32
    learning_rate: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    targets: tuple[float, ...] = (0.9, 0.95, 0.98, 0.99)
    rounds: int = 5
    round_epochs: int = 12
    round_rate: float = 0.005
    shown: float = 0.95
    shrunk: tuple[float, ...] = (0.75, 0.9)
    multiple_of: int = 8

    @property
    def total_epochs(self) -> int:
        """Of all runs, where those that prune after training share the training of the dense one."""
        trained = 1 + len(self.targets) + 1 + len(self.shrunk)
        return trained * self.epochs + len(self.targets) * self.rounds * self.round_epochs

    def compared(self, seed: int = 0) -> list[Run]:
        """The runs of the first part, the dense one first: those that prune after training start from it."""
        dense = Run(
            norm=False,
            method="dense",
            seed=seed,
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.learning_rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            rounds=self.rounds,
            fine_tune=self.round_epochs,
            last_fine_tune=self.round_epochs,
            fine_tune_lr=self.round_rate,
        )
        methods = [name for name in NAMES if name != "dense"]
        return [dense, *(replace(dense, method=m, sparsity=s) for m in methods for s in self.targets)]

    def cut(self, seed: int = 0) -> list[Run]:
        """The runs of the second part, the dense one first: a network with batch-norms, whole channels."""
        dense = replace(self.compared(seed)[0], norm=True, structure="channels")
        auto = replace(dense, method="auto", multiple_of=self.multiple_of)
        return [dense, *(replace(auto, sparsity=sparsity) for sparsity in self.shrunk)]


@dataclass(frozen=True)
class Outcome:
    """What a method came to at a target.

    ``before`` and ``after`` are the test accuracies, in percent, on both sides of the removal, or of the
    last one; ``final`` is that of the finished network, which differs where fine-tuning follows.
    """

    method: str
    sparsity: float
    before: float
    after: float
    final: float
    left: int
    total: int
    epochs: int
    seconds: float = 0.0


@dataclass(frozen=True)
class Shrunk:
    """A network of which a fraction of the parameters was cut out; of the dense one nothing.

    ``before``, ``after`` and ``compact`` are test accuracies in percent: before the removal, after it, and of
    the smaller network. ``milliseconds`` are what a batch of all test images takes in each engine.
    """

    sparsity: float
    before: float
    after: float
    compact: float
    parameters: int
    operations: int
    bytes: int
    milliseconds: dict[Engine, float] = field(default_factory=dict)


def compare(settings: Settings, seed: int, display: Any) -> tuple[list[Outcome], Fading]:
    """Train one network from one initialisation, by every method and to every target.

    Args:
        settings, seed: how to train.
        display: told how it goes: ``begin(title)``, a call after each step, ``end(line)``.

    Returns:
        what came of each, and how the weights faded at the target ``settings.shown``.
    """
    outcomes: list[Outcome] = []
    snapshots: list[Tensor] = []  # all prunable weights, after each epoch
    dense, *others = settings.compared(seed)
    shown = replace(dense, method="auto", sparsity=settings.shown)
    stays = torch.empty(0)
    with tempfile.TemporaryDirectory() as results:
        for run in (dense, *others):
            start, title = time.perf_counter(), label(NAMES[run.method], _removed(run))
            display.begin(title)

            def watch(now: dict[str, Any], run: Run = run) -> None:
                if run == shown and now["step"] % now["in_epoch"] == 0:
                    snapshots.append(_flat(now["pruner"].parameters))
                display(now)

            share_training(run, dense, results)
            state = _carry_out(run, results, watch)
            outcome = replace(_outcome(run, state), seconds=round(time.perf_counter() - start, 2))
            outcomes.append(outcome)
            display.end(f"{title}: {outcome.final:.2f} % accuracy after {outcome.seconds:.0f} s")
            if run == shown:
                first = dict(build_model(run, 10).named_parameters())
                snapshots.insert(0, _flat({name: first[name] for name in state["masks"]}))
                stays = _flat(state["masks"])
    return outcomes, Fading.of(settings.shown, snapshots, stays)


def shrink(settings: Settings, seed: int, data: Dataset, display: Any) -> tuple[list[Shrunk], nn.Module]:
    """Train the network dense and with fading channels, cut them out, and measure what is left.

    Returns:
        a line for each, the dense one first, and the smallest network.
    """
    networks, lines = [], []
    with tempfile.TemporaryDirectory() as results:
        for run in settings.cut(seed):
            display.begin(label("channels", _removed(run)))
            state = _carry_out(run, results, display)
            model = build_model(run, data.num_classes)
            model.load_state_dict(state["model"])
            model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]  # as it trained
            network = compact(model, data.example).eval()
            save(network, file := Path(results) / "network.safetensors")
            size = measure(network, data.example).total
            before, after, _ = _accuracies(state)
            found = evaluate(network, data.tests(1000)).top1
            sizes = size.parameters, size.operations_output, file.stat().st_size
            lines.append(Shrunk(_removed(run), before, after, found, *sizes))
            networks.append(network)
    times = _milliseconds(networks, data.test_x)
    return [replace(line, milliseconds=t) for line, t in zip(lines, times, strict=True)], networks[-1]


def label(method: str, sparsity: float) -> str:
    """A method and its target.

    >>> label("fadeout", 0.95), label("dense", 0.0)
    ('fadeout 95 %', 'dense')
    """
    return f"{method} {percent(sparsity)}" if sparsity else method


def shrunk_headings(dense: Shrunk) -> list[str]:
    """Of the columns; each engine in which it was timed has one."""
    sizes = ["para-\nmeters", "oper-\nations", "kilo-\nbytes"]
    times = ["ms in\n" + ENGINES[engine].replace("\u00ad", "-\n") for engine in dense.milliseconds]
    return ["before\nremoval", "after\nremoval", "cut\nout", *sizes, *times]


def shrunk_cells(line: Shrunk, dense: Shrunk) -> list[str]:
    """The cells of a line, in the order of the headings."""
    return [
        *(f"{value:.2f}" for value in (line.before, line.after, line.compact)),
        *(f"{value:,}" for value in (line.parameters, line.operations)),
        f"{line.bytes / 1000:.1f}",
        *(f"{ms:.2f} {dense.milliseconds[engine] / ms:.1f}x" for engine, ms in line.milliseconds.items()),
    ]


def _carry_out(run: Run, results: str, watch: Any) -> dict[str, Any]:
    """The state of a run when it has ended."""
    execute(run, results, watch=watch)
    state = read_checkpoint(Path(results) / run.hash)
    assert state is not None
    return state


def _outcome(run: Run, state: dict[str, Any]) -> Outcome:
    masks = Masks(state["masks"])
    weights = [weight for weight in build_model(run, 10).parameters() if weight.dim() >= 2]
    total = sum(weight.numel() for weight in weights)
    left = masks.left if masks else total
    return Outcome(NAMES[run.method], _removed(run), *_accuracies(state), left, total, run.total_epochs)


def _accuracies(state: dict[str, Any]) -> tuple[float, float, float]:
    """Before and after the last removal, if there was one, and in the end."""
    figures = state["figures"]
    return figures.get("before", figures["after"]), figures.get("removed", figures["after"]), figures["after"]


def _removed(run: Run) -> float:
    return 0.0 if run.method == "dense" else run.sparsity


def _flat(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors.values()])


def _milliseconds(networks: list[nn.Module], images: Tensor) -> list[dict[Engine, float]]:
    """What a batch takes in each engine that is installed. The networks take turns: noise hits all alike."""
    named = {str(number): network for number, network in enumerate(networks)}
    found: list[dict[Engine, float]] = [{} for _ in networks]
    for engine in ENGINES:
        try:
            seconds = time_networks(named, Example((images,)), engine)
        except MissingExtraError:
            continue
        for times, each in zip(found, seconds.values(), strict=True):
            times[engine] = round(1000 * each, 4)
    return found
