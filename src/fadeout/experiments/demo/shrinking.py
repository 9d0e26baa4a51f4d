"""The second part of the demo: whole channels fade and are cut out, and the network is really smaller."""

import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

import fadeout
from fadeout.experiments.demo.compare import Comparison
from fadeout.experiments.training import in_thirds
from fadeout.measure import measure
from fadeout.models import smallcnn


@dataclass(frozen=True)
class Shrunk:
    """A network of which a fraction of the parameters was cut out; of the dense one nothing.

    ``before``, ``after`` and ``compact`` are test accuracies in percent: before the removal, after it, and of
    the smaller network. ``microseconds`` are the median time for a picture, in a batch of all test pictures.
    """

    sparsity: float
    before: float
    after: float
    compact: float
    parameters: int
    operations: int
    bytes: int
    microseconds: float = 0.0


def shrink(comparison: Comparison) -> tuple[list[Shrunk], nn.Module]:
    """Train the same network dense and with fading channels, cut them out, and measure what is left.

    Returns:
        a line for each, the dense one first, and the smallest network.
    """
    networks, lines = [], []
    for sparsity in (0.0, *comparison.settings.shrunk):
        network, accuracies = _train(comparison, sparsity)
        networks.append(network)
        size = measure(network, comparison.data.example).total
        lines.append(Shrunk(sparsity, *accuracies, size.parameters, size.operations_output, _bytes(network)))
    times = _microseconds(networks, comparison)
    return [replace(line, microseconds=t) for line, t in zip(lines, times, strict=True)], networks[-1]


def _train(comparison: Comparison, sparsity: float) -> tuple[nn.Module, tuple[float, float, float]]:
    epochs, example = comparison.settings.epochs, comparison.data.example
    model, optimizer = comparison.fresh(lambda: smallcnn(norm=True))
    steps = comparison.steps(epochs)
    pruner = (
        fadeout.SelectiveWeightDecay(
            model, optimizer, sparsity=sparsity, steps=steps, structure=fadeout.Channels(example)
        )
        if sparsity
        else fadeout.NoPruning()
    )
    comparison.begin("channels", sparsity, epochs)
    comparison.train(model, optimizer, epochs, scheduler=in_thirds(optimizer, steps), pruner=pruner)
    before = comparison.accuracy(model)
    pruner.remove()
    after = comparison.accuracy(model)
    network = fadeout.compact(model, example)
    return network.eval(), (before, after, comparison.accuracy(network))


def _bytes(network: nn.Module) -> int:
    with tempfile.TemporaryDirectory() as folder:
        fadeout.save(network, path := Path(folder) / "network.safetensors")
        return path.stat().st_size


def _microseconds(networks: list[nn.Module], comparison: Comparison, rounds: int = 30) -> list[float]:
    """The median time for a picture. The networks take turns, so that noise hits all alike."""
    pictures, spent = comparison.data.test_x, [[] for _ in networks]
    with torch.inference_mode():
        for number in range(rounds + 3):
            for network, times in zip(networks, spent, strict=True):
                start = time.perf_counter()
                network(pictures)
                if number >= 3:  # the first ones warm up
                    times.append(time.perf_counter() - start)
    return [round(1e6 * statistics.median(times) / len(pictures), 3) for times in spent]
