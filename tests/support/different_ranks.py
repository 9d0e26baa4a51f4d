"""Pruners that differ from process to process; what the processes of tests/attacks/test_ranks.py do."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from support.distributed_cases import build, wrap
from torch import nn

import fadeout
from fadeout import Channels, Decay, Elements, Latent, Progressive, criteria, schedules
from fadeout.methods import ACDC, GradualMagnitudePruning, RigL
from fadeout.torch_bridge import rank_agreement
from fadeout.torch_bridge.parameters import named

IMAGE = torch.zeros(1, 1, 6, 6, dtype=torch.float64)


def by_name(word: str) -> Callable[[str, nn.Parameter], bool]:
    return lambda name, parameter: word in name and parameter.dim() > 1


# what the first process is given, and what the last; what the message names
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "fades": ({"fade": Progressive()}, {"fade": Latent()}, "fade"),
    "strengths": ({"fade": Decay(1.0, weight_decay=1.0)}, {"fade": Decay(2.0, weight_decay=1.0)}, "fade"),
    "strength schedules": (
        {"fade": Decay(schedules.linear(0.0, 1.0), weight_decay=1.0)},
        {"fade": Decay(schedules.cosine(0.0, 1.0), weight_decay=1.0)},
        "fade",
    ),
    "modes": (
        {"fade": Decay(1.0, weight_decay=1.0)},
        {"fade": Decay(1.0, weight_decay=1.0, mode="implicit")},
        "fade",
    ),
    "structures": ({"structure": Elements()}, {"structure": Elements(scope="layer")}, "structure"),
    "units": ({"structure": Elements()}, {"structure": Channels(IMAGE)}, "structure"),
    "channels by": ({"structure": Channels(IMAGE)}, {"structure": Channels(IMAGE, by="norm")}, "structure"),
    "examples": ({"structure": Channels(IMAGE)}, {"structure": Channels(IMAGE[..., :5])}, "structure"),
    "criteria": ({"criterion": criteria.magnitude}, {"criterion": criteria.taylor}, "criterion"),
    "averages": (
        {"criterion": criteria.moving_average(criteria.taylor)},
        {"criterion": criteria.moving_average(criteria.taylor, decay=0.5)},
        "criterion",
    ),
    "lambdas": (
        {"criterion": lambda weight, gradient: weight.abs()},
        {"criterion": lambda weight, gradient: weight.abs() + 1},
        "criterion",
    ),
    "sparsities": ({"sparsity": 0.5}, {"sparsity": 0.6}, "sparsity"),
    "schedules": (
        {"sparsity": schedules.linear(0.1, 0.5)},
        {"sparsity": schedules.cubic(0.5, 0.1)},
        "sparsity",
    ),
    "a number and a schedule": ({"sparsity": 0.5}, {"sparsity": lambda progress: 0.5}, "sparsity"),
    "steps": ({"steps": 10}, {"steps": 11}, "steps"),
    "prunable": ({"prunable": by_name("conv")}, {"prunable": by_name("hidden")}, "prunable"),
    "names": ({"prunable": ["hidden.weight"]}, {"prunable": ["head.weight"]}, "prunable"),
    "methods": ({}, {"method": GradualMagnitudePruning, "fade": None}, "different"),
    "kin": ({"method": ACDC, "fade": None}, {"method": GradualMagnitudePruning, "fade": None}, "methods"),
    "seeds": ({"method": RigL, "fade": None}, {"method": RigL, "fade": None, "seed": 1}, "seed"),
    "learning rates": ({}, {"lr": 0.2}, "optimizer"),
    "optimizers": ({}, {"optimizer": torch.optim.AdamW}, "optimizer"),
    "an error on one": ({}, {"sparsity": 90}, "sparsity"),
    "no model on one": ({}, {"model": None}, "model"),
    "a missing argument on one": ({}, {"steps": ...}, "steps"),
    "attached before on one": ({}, {"before": True}, "already pruned"),
    "no pruner on one": ({}, {"method": None}, "no pruner on process 1 after"),
    "another on one": ({}, {"method": fadeout.NoPruning}, "no pruner on process 1 after"),
}


def differ(how: str, pair: str) -> str:
    """What building a pruner says on this process."""
    first, last, _ = PAIRS[pair]
    return attempt(how, **(last if dist.get_rank() == dist.get_world_size() - 1 else first))


def agree(how: str) -> str:
    """The same arguments on all: nothing is said."""
    return attempt(how)


def attempt(
    how: str,
    method: Any = fadeout.SelectiveWeightDecay,
    lr: float = 0.1,
    optimizer: Any = torch.optim.SGD,
    before: bool = False,
    **arguments: Any,
) -> str:
    rank_agreement.PATIENCE = timedelta(seconds=3)
    model = wrap(build(), how)
    trained = optimizer(model.parameters(), lr=lr)
    given = {"model": model, "optimizer": trained, "sparsity": 0.5, "steps": 10, **arguments}
    given = {name: value for name, value in given.items() if value is not ... and value is not None}
    if "model" in arguments:
        given["model"] = None
    if method is None:
        return "none"
    try:
        if before:
            _attach_alone(model)
        method(**given)
    except (ValueError, TypeError, TimeoutError) as error:
        return f"{type(error).__name__}: {error}"
    return "built"


def _attach_alone(model: nn.Module) -> None:
    """Leave the parameters under a pruner, without a word to the others."""
    from fadeout.pruners import step_pruner

    class Other:
        parameters = named(model)

    _KEPT.append(other := Other())
    step_pruner._ATTACHED[id(other)] = other  # type: ignore[arg-type]


_KEPT: list[Any] = []


def forget() -> None:
    from fadeout.pruners import step_pruner

    for other in _KEPT:
        step_pruner._ATTACHED.pop(id(other))
    _KEPT.clear()
