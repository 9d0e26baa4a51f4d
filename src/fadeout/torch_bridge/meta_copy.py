"""A copy of a sharded network on the meta device: its modules and shapes, without hooks and weights."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fadeout.torch_bridge.sharding import is_distributed


def traceable(model: nn.Module, example_input: Any) -> tuple[nn.Module, Any]:
    """What can be traced in place of a model: itself, unless its parameters are distributed.

    Sharding puts hooks on the modules that gather their weights, and its own classes over theirs; both are
    left out. The copy has the whole shapes, on the meta device, so that it takes no memory.

    >>> model = nn.Linear(2, 2)
    >>> traceable(model, torch.zeros(1, 2))[0] is model
    True
    """
    if not any(map(is_distributed, model.parameters())):
        return model, example_input
    if isinstance(example_input, Mapping):
        example_input = dict(example_input)  # the batches of transformers are of a class of their own
    return _meta_copy(model, {}), pytree.tree_map(_meta, example_input)


def _meta_copy(module: nn.Module, done: dict[int, Any]) -> nn.Module:
    if id(module) in done:
        return done[id(module)]
    twin = done[id(module)] = object.__new__(_own_class(module))
    twin.__dict__ |= module.__dict__
    for name, value in module.__dict__.items():
        if name.endswith("_hooks") and isinstance(value, dict):
            twin.__dict__[name] = OrderedDict()
    twin._buffers = {name: _meta(buffer) for name, buffer in module._buffers.items()}
    twin._parameters = {}
    for name, parameter in module._parameters.items():
        if parameter is not None and id(parameter) not in done:  # tied ones stay tied
            done[id(parameter)] = nn.Parameter(_meta(parameter), parameter.requires_grad)
        twin._parameters[name] = None if parameter is None else done[id(parameter)]
    twin._modules = {
        name: None if child is None else _meta_copy(child, done) for name, child in module._modules.items()
    }
    return twin


def _own_class(module: nn.Module) -> type:
    from torch.distributed.fsdp import FSDPModule

    return next(one for one in type(module).__mro__ if not issubclass(one, FSDPModule))


def _meta(value: Any) -> Any:
    """A tensor's shape and type."""
    return torch.empty(value.shape, dtype=value.dtype, device="meta") if isinstance(value, Tensor) else value
