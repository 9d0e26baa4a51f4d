"""Networks that have lost channels or weights without a training: how fast they run does not depend on it."""

import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse

import fadeout
from fadeout._timing import Timing, race
from fadeout.engines import Engine, call_of, clock_of
from fadeout.graph.example import Example

CPU = torch.device("cpu")


@contextmanager
def threads(number: int) -> Iterator[None]:
    """So many threads, inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def quietly() -> Iterator[None]:
    """Nothing has faded when these networks lose channels, and the pruner would say so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def scattered(model: nn.Module) -> nn.Module:
    """Random scales, so that layers lose different numbers of channels."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight)
    return model.eval()


def resnet20(width: int = 64) -> nn.Module:
    torch.manual_seed(0)
    return scattered(fadeout.models.resnet20(width=width))


def resnet50(width: int = 64) -> nn.Module:
    torch.manual_seed(0)
    return scattered(fadeout.models.resnet50(1000, width, stem="imagenet"))


def mobilenetv2(width: float = 1.0) -> nn.Module:
    torch.manual_seed(0)
    return scattered(fadeout.models.mobilenetv2(width_mult=width))


def vit(dim: int = 192) -> nn.Module:
    torch.manual_seed(0)
    return fadeout.models.vit(dim=dim).eval()


def without_channels(model: nn.Module, structure: Any, sparsity: float | None) -> tuple[nn.Module, Any]:
    """What is left of a network, physically, and the pruner that took the rest."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with quietly():
        pruner = fadeout.SelectiveWeightDecay(
            model,
            optimizer,
            sparsity=sparsity,
            steps=1,
            structure=structure,
            criterion=fadeout.criteria.magnitude,  # their random scales: all layers lose about the same share
        )
        pruner.remove()
        example = structure.example_input
        return fadeout.compact(model, example, couple=structure.couple, for_inference=True), pruner


def folded(model: nn.Module) -> nn.Module:
    """The network with batch-norms folded into the convolutions before them, as onnxruntime does."""
    return fuse(model)


def in_turns(
    networks: Mapping[str, nn.Module], given: Tensor, engine: Engine, rounds: int = 9
) -> dict[str, Timing]:
    """The seconds of a forward pass of each network; with one thread by the clock of the process."""
    calls: dict[str, Callable[[], object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, network) in enumerate(networks.items()):
            network = folded(network) if engine != "onnxruntime" else network
            calls[name] = call_of(network, Example((given,)), engine, Path(folder) / f"{number}.onnx")
        return race(calls, rounds=rounds, clock=clock_of(CPU))


def command(name: str, counts: Sequence[int] = ()) -> str:
    """How to make a page again."""
    options = f" --threads {' '.join(map(str, counts))}" if counts else ""
    return f"`python benchmarks/speed.py {name}{options}`"
