"""What a forward keeps on its modules, beside what it returns: ``self.features = h``."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy

from fadeout.torch_bridge.modes import in_mode

_M = TypeVar("_M", bound=nn.Module)


def keep(value: Tensor, where: str) -> None:
    """Stands in a graph for the line that keeps a value: whoever reads it there needs all of it."""


def keeps(graph: fx.Graph) -> bool:
    """Whether a forward keeps anything, which no graph can do for it."""
    return any(node.target is keep for node in graph.nodes)


def kept_on(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The tensors that modules have as attributes, buffers included, in lists and dictionaries too.

    >>> model = nn.Sequential(nn.Linear(2, 2))
    >>> model[0].maps = {"first": [Tensor([1.0])]}
    >>> list(kept_on(model))
    [('0.maps', tensor([1.]))]
    """
    for path, module in model.named_modules():
        own = {name: value for name, value in vars(module).items() if name not in ("_parameters", "_modules")}
        own |= own.pop("_buffers", {})
        for name, value in own.items():
            for tensor in _tensors(value, depth=2):
                yield f"{path}.{name}".lstrip("."), tensor


def _tensors(value: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, Mapping | list | tuple):
        for item in list(value.values()) if isinstance(value, Mapping) else value:
            yield from _tensors(item, depth - 1)


@contextmanager
def left_alone(model: nn.Module) -> Iterator[None]:
    """Afterwards modules have the attributes that they had, whatever a forward has kept on them meanwhile.

    What initialises itself in its first forward may do so.

    >>> model = nn.Linear(2, 2)
    >>> with left_alone(model):
    ...     model.features = model.weight * 2
    >>> hasattr(model, "features")
    False
    """
    before = []
    for module in model.modules():
        if not any(map(is_lazy, module.parameters(recurse=False))):
            holders = [vars(module), *(one for one in vars(module).values() if type(one) in (dict, list))]
            before += [(holder, holder.copy()) for holder in holders]
    try:
        yield
    finally:
        for holder, own in before:
            holder.clear()
            (holder.extend if isinstance(holder, list) else holder.update)(own)


@contextmanager
def undisturbed(model: nn.Module, training: bool = False) -> Iterator[None]:
    """A network may run meanwhile, without gradients, and nothing of it is left: see :func:`left_alone`.

    Modes and the state of the random numbers on the CPU are those from before.
    """
    with left_alone(model), in_mode(model, training), torch.no_grad(), torch.random.fork_rng(devices=[]):
        yield


def copied(model: _M) -> _M:
    """A copy of a network, also where modules have kept what gradients flow through, which PyTorch refuses.

    >>> model = nn.Linear(2, 2)
    >>> model.features = model.weight * 2
    >>> copied(model).features.requires_grad
    False
    """
    through = (tensor for _, tensor in kept_on(model) if not tensor.is_leaf)
    return copy.deepcopy(model, {id(tensor): tensor.detach().clone() for tensor in through})
