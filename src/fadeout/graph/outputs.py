"""What networks give: whether two of them agree, on the example and on inputs of other sizes."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from fadeout.graph.example import Example, tensors_in
from fadeout.torch_bridge.modes import in_mode, still

_NEAR = 0.1  # of the largest output, at most: rounding to bfloat16 was seen to change deep networks by 0.02


@torch.no_grad()
def agree(model: nn.Module, other: nn.Module, example: Example, training: bool = False) -> bool:
    """Whether two modules give the same on the example."""
    outputs = []
    for module in (model, other):
        args, kwargs = example.fresh()
        try:
            with in_mode(module, training), torch.random.fork_rng(devices=[]), _WithoutDropout():
                torch.manual_seed(0)
                outputs.append(tensors_in(module(*args, **kwargs)))
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, AssertionError):
            return False
    mine, theirs = outputs
    return len(mine) == len(theirs) and all(map(_near, mine, theirs))


def of_other_sizes(model: nn.Module, example: Example) -> list[Example]:
    """The example with another batch size, and with another image size, if the network takes them."""
    variants = example.variants()
    rows = _rows(model, example) if variants else []
    return [each for each in variants if _rows(model, each) == rows != []]


def replays(model: nn.Module, graph: fx.Graph, constants: Mapping[str, Tensor], example: Example) -> bool:
    """Whether what was recorded on the example gives what the network gives on other sizes, too."""
    if any(one.is_meta for one in example.tensors):  # there are no numbers to compare
        return True
    replay = _Replay(model, graph, constants)
    return all(agree(model, replay, each) for each in of_other_sizes(model, example))


class _Replay(nn.Module):
    """What was recorded of a network's forward, as a module.

    Args:
        model: the network.
        graph: of the calls.
        constants: tensors in the graph that the network does not have.
    """

    def __init__(self, model: nn.Module, graph: fx.Graph, constants: Mapping[str, Tensor]):
        super().__init__()
        self.model, self.graph, self.constants = model, graph, constants

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = Example(args, kwargs).named(self.model.forward).values()
        return _Interpreter(self.model, self.graph, self.constants).run(*given)


class _Interpreter(fx.Interpreter):
    def __init__(self, model: nn.Module, graph: fx.Graph, constants: Mapping[str, Tensor]):
        super().__init__(model, graph=graph)
        self.constants = constants

    def fetch_attr(self, target: str) -> Any:
        return self.constants[target] if target in self.constants else super().fetch_attr(target)


class _WithoutDropout(TorchFunctionMode):
    """Leaves dropout out: where there are fewer channels, other numbers would be drawn for them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if "dropout" in func.__name__:
            return args[0] if args else kwargs["input"]
        if func is F.scaled_dot_product_attention and len(args) > 4:
            args = (*args[:4], 0.0, *args[5:])
        elif func is F.scaled_dot_product_attention:
            kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)


def _rows(model: nn.Module, example: Example) -> list[float]:
    """How many rows each output has for a row of the input; empty where the network does not take it."""
    args, kwargs = example.fresh()
    try:
        with still(model), torch.random.fork_rng(devices=[]):
            outputs = tensors_in(model(*args, **kwargs))
    except Exception:  # whatever it does with an input that it was not made for
        return []
    return [len(one) / len(example.tensors[0]) for one in outputs if one.dim()]


def _near(mine: Tensor, theirs: Tensor) -> bool:
    """Whether two tensors are the same up to rounding."""
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        return False
    if not mine.is_floating_point() and not mine.is_complex():
        return torch.equal(mine, theirs)
    near = min((100 * torch.finfo(mine.dtype).eps) ** 0.5, _NEAR)
    scale = float(mine.abs().nan_to_num(0.0, 0.0, 0.0).max()) if mine.numel() else 0.0
    return torch.allclose(mine, theirs, rtol=near, atol=near * max(scale, 1e-30), equal_nan=True)
