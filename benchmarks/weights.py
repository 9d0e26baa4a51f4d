"""Weights without a network: they drift as in training, and the pruner's hooks run on nothing else."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from harness import at_step
from torch import Tensor, nn

import fadeout

STEPS = 100_000  # of the training that the steps are taken from
SPARSITY = 0.9
KINDS = {"compiled": True, "eager": False}  # of passes
POSITIONS = {"mid training": 0.5, "the last tenth": 0.95}
_LARGEST = 1 << 20  # weights in a matrix
# Of LeNet-5 on MNIST with momentum: the norm of an update over that of the weights, and by how much its
# logarithm changes from one step to the next (without momentum 0.35). The threshold goes up and down with it.
_DRIFT, _UNEVEN = 5e-3, 0.1


def matrices(count: int) -> nn.ParameterList:
    """So many random weights, in matrices of at most a million."""
    torch.manual_seed(0)
    whole, rest = divmod(count, _LARGEST)
    sizes = [_LARGEST] * whole + [rest] * (rest > 0)
    # of any shape: the pruner takes weights of two dimensions
    return nn.ParameterList([torch.randn(1, size) for size in sizes])


@torch.no_grad()
def drift(weights: nn.ParameterList) -> None:
    """Move every weight a little, as a step of training does."""
    scale = _DRIFT * math.exp(_UNEVEN * float(torch.randn(())))
    for weight in weights:  # random pieces of one sequence: to draw all anew takes longer than what is timed
        start = int(torch.randint(len(_noise()) - weight.numel() + 1, ()))
        weight.add_(_noise()[start : start + weight.numel()].view_as(weight), alpha=scale)


@torch.no_grad()
def multiply(weights: nn.ParameterList) -> None:
    """One multiplication of all weights in place: the least that a step can cost."""
    for weight in weights:
        weight.mul_(0.999)


class Still(torch.optim.Optimizer):
    """An optimizer that leaves the weights alone, so that its step is the pruner's hooks."""

    def __init__(self, parameters: Any):
        super().__init__(parameters, {"lr": 0.1, "weight_decay": 5e-4})

    def step(self, closure: Any = None) -> Any:
        return None


def pruner_step(
    weights: nn.ParameterList, step: int, compile: bool | None
) -> tuple[fadeout.SelectiveWeightDecay, Callable[[], object]]:
    """A pruner at this step of a training, and what calls it as an optimizer does.

    Args:
        weights: the network.
        step: of the training.
        compile: as in :class:`fadeout.Elements`.
    """
    optimizer = Still(weights.parameters())
    structure = fadeout.Elements(compile=compile)
    pruner = fadeout.SelectiveWeightDecay(
        weights,
        optimizer,
        sparsity=SPARSITY,
        steps=STEPS,
        structure=structure,
        fade=fadeout.Progressive(),
    )
    at_step(pruner, step)
    return pruner, optimizer.step


@torch.no_grad()
def fade(parameters: Iterable[nn.Parameter], fraction: float) -> None:
    """Make a random part of the weights small, as a pruner has left them; the others are as they were.

    So there are a few of every size between the small ones and the large ones, as in a trained network,
    where weights change places. Were the lowest taken, there would be a gap.
    """
    for parameter in parameters:
        if parameter.dim() >= 2:
            parameter.mul_(torch.where(torch.rand_like(parameter) < fraction, _DRIFT, 1.0))


def settled(count: int, progress: float, steps: int = 20) -> tuple[nn.ParameterList, int]:
    """Weights as training has left them at this point, and the step from which to go on."""
    weights, step = matrices(count), round(progress * STEPS)
    pruner, act = pruner_step(weights, step, compile=False)
    fade(weights.parameters(), pruner.sparsity_now)
    for _ in range(steps):
        drift(weights)
        act()
    pruner.detach()  # another one goes on
    return weights, step + steps


def _noise() -> Tensor:
    global _sequence
    if _sequence is None:
        _sequence = torch.randn(2 * _LARGEST, generator=torch.Generator().manual_seed(0))
    return _sequence


_sequence: Tensor | None = None
