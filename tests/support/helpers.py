"""What several test files share."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import fadeout
from fadeout.graph.gather import Gather
from fadeout.torch_bridge.sharding import is_distributed

ALL = slice(None)
IMAGES = (2, 3, 6, 6)
FEATURES = (4, 3)


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def zeros(model: nn.Module) -> dict[str, Tensor]:
    """Where the matrices and filters of a network are exactly zero."""
    return {name: p == 0 for name, p in model.named_parameters() if p.dim() >= 2}


def count(marks: Mapping[str, Tensor]) -> int:
    """How many are True, in all of the masks."""
    return sum(int(mark.count_nonzero()) for mark in marks.values())


def gathers(model: nn.Module) -> list[Gather]:
    """The modules that gather channels by index."""
    return [module for module in model.modules() if isinstance(module, Gather)]


@torch.no_grad()
def kill(*layers: Any, channels: Iterable[int] | slice, shift: float = 0.0) -> None:
    """Zero the rows of these channels; ``shift`` is what is left of them in the bias."""
    chosen = channels if isinstance(channels, slice) else list(channels)
    for layer in layers:
        layer.weight[chosen] = 0
        if getattr(layer, "bias", None) is not None:
            layer.bias[chosen] = shift


def as_tuple(inputs: Any) -> tuple[Any, ...]:
    return inputs if isinstance(inputs, tuple) else (inputs,)


def outputs(model: nn.Module, inputs: Any, *, training: bool = False) -> list[Tensor]:
    """What a network gives, in the mode asked for; its own mode stays."""
    modes = {module: module.training for module in model.modules()}
    try:
        return pytree.tree_leaves(model.train(training)(*as_tuple(inputs)))
    finally:
        for module, mode in modes.items():
            module.training = mode


def same_outputs(one: nn.Module, other: nn.Module, inputs: Any, *, training: bool = False) -> None:
    """Assert that two networks of float64 give the same up to rounding."""
    mine, theirs = (outputs(model, inputs, training=training) for model in (one, other))
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


class Net(nn.Module):
    """A forward written out, on layers by name: ``Net(lambda m, x: m.b(m.a(x)), a=..., b=...)``."""

    def __init__(self, function: Any, **layers: nn.Module):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


class OfTwo(Net):
    """The same, of two inputs."""

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.function(self, x, y)


def conv(inputs: int, outputs: int, kernel: int = 1, **arguments: Any) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, **arguments)


def check(model: nn.Module, kept: dict[str, Any], inputs: Any = IMAGES, **options: Any) -> nn.Module:
    """Compact, and compare every weight with the one it was.

    Args:
        model: the network.
        kept: for each layer the rows that stay, or rows and columns, or None where the test looks for itself.
            Layers that are not named must be whole.
        inputs: for the network, or the shape of one.
    """
    for module in model.modules():  # not a mean of zero, which would hide much
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    model = model.double().eval()
    if isinstance(inputs, tuple) and isinstance(inputs[0], int):
        inputs = torch.randn(inputs).double()
    small = fadeout.compact(model, inputs, **options)
    same_outputs(model, small, inputs)
    found = small.state_dict()
    for name, module in model.named_modules():
        weight, stays = getattr(module, "weight", None), kept.get(name, ALL)
        if not isinstance(weight, Tensor) or stays is None:
            continue
        rows, columns = stays if isinstance(stays, tuple) else (stays, ALL)
        wanted = weight[rows] if weight.dim() == 1 else weight[rows][:, columns]
        ways = (f"{name}.weight", f"{name}.0.weight", f"{name}.1.weight")  # perhaps beside a Gather
        mine = next((found[way] for way in ways if way in found), weight)
        assert torch.equal(mine, wanted), f"{name}: {tuple(mine.shape)} for {tuple(wanted.shape)}"
    return small


class Largest(TorchDispatchMode):
    """Notes the size of the largest tensor that is made."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {x.untyped_storage().data_ptr() for x in _plain((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for made in _plain(result):
            if made.untyped_storage().data_ptr() not in given:
                self.bytes = max(self.bytes, made.untyped_storage().nbytes())
        return result


def _plain(values: Any) -> list[Tensor]:
    """The tensors that hold their own numbers: a distributed one is wrapped around such a one."""
    return [x for x in pytree.tree_leaves(values) if isinstance(x, Tensor) and not is_distributed(x)]


def same(one, other, place=""):
    """Assert that two nests of values are equal, tensors to the last bit."""
    assert type(one) is type(other), place
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype, place
        assert torch.equal(one, other), place
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), place
        for key in one:
            same(one[key], other[key], f"{place}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), place
        for number, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            same(mine, theirs, f"{place}.{number}")
    else:
        assert one == other, place


def wait_for(condition: Callable[[], object], seconds: float = 240) -> None:
    """Wait until it holds; one that never does fails the test."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            pytest.fail("it never came")
        time.sleep(0.1)
