"""Optimizers as users pass them: one or several, wrapped or not, and what they keep beside the weights."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fadeout._arguments import shown
from fadeout.torch_bridge.sharding import local

_WRAPPERS = {"accelerate", "lightning", "lightning_fabric", "pytorch_lightning"}
"""Packages whose optimizers hand every call on to the user's own, whose hooks are those that run."""


def as_list(optimizer: Optimizer | Sequence[Optimizer]) -> list[Optimizer]:
    """One optimizer or several as a list, each once, without the wrappers of Accelerate and Lightning."""
    several: Any = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
    optimizers: list[Optimizer] = list({id(one): one for one in map(unwrap_optimizer, several)}.values())
    if not optimizers or not all(isinstance(o, Optimizer) for o in optimizers):
        hint = ""
        if any(isinstance(getattr(o, "base", None), Optimizer) for o in optimizers):
            hint = ". One that wraps another and is none itself (schedulefree.ScheduleFreeWrapper) has no "
            hint += "step hooks: take schedulefree.AdamWScheduleFree, SGDScheduleFree or RAdamScheduleFree"
        raise ValueError(
            f"optimizer is a torch.optim.Optimizer, or a list of them; got {shown(optimizer)}{hint}"
        )
    for one in optimizers:
        if not hasattr(one, "_optimizer_step_post_hooks"):
            raise ValueError(
                f"{type(one).__name__} has no step hooks, as it does not call super().__init__(): pass the "
                "optimizer that it wraps, or call it there"
            )
    return optimizers


def unwrap_optimizer(optimizer: Any) -> Any:
    """The user's own optimizer, inside that of Accelerate, Lightning or Fabric."""
    while any(base.__module__.partition(".")[0] in _WRAPPERS for base in type(optimizer).__mro__):
        inside = getattr(optimizer, "optimizer", None)
        if not isinstance(inside, Optimizer):
            break
        optimizer = inside
    return optimizer


def is_schedule_free(group: dict[str, Any]) -> bool:
    """Whether a parameter group is that of a schedule-free optimizer (Defazio et al., 2024).

    Its parameters hold ``y``, at which gradients are taken, and the state ``z``, which is stepped; what is
    evaluated, ``x = y + (1 - 1 / beta) (z - y)``, comes of both with ``optimizer.eval()``.
    """
    return "train_mode" in group


def bases(optimizers: Sequence[Optimizer], parameter: nn.Parameter) -> list[Tensor]:
    """The ``z`` of a parameter, this process's block, where an optimizer is schedule-free and has stepped.

    What is done to the weights has to be done to it too: ``x`` is linear in both, so that it then fades
    alike, and is exactly zero where both are.
    """
    states = [optimizer.state.get(parameter, {}) for optimizer in optimizers]
    found = [local(s["z"]) for s in states if isinstance(s.get("z"), Tensor)]
    return [z for z in found if z.shape == local(parameter.detach()).shape]


@torch.no_grad()
def set_to_zero(parameter: nn.Parameter, gone: Tensor, optimizers: Sequence[Optimizer]) -> None:
    """Set weights to exactly zero in a parameter, and in what an optimizer would bring them back from."""
    for tensor in (local(parameter.detach()), *bases(optimizers, parameter)):
        tensor.masked_fill_(gone, 0)
