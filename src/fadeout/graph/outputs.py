"""What networks give: whether two of them agree, on the example and on inputs of other sizes."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from fadeout.graph.example import Example, tensors_in
from fadeout.graph.side_effects import undisturbed

_NEAR = 0.1  # of the largest output, at most: rounding to bfloat16 was seen to change deep networks by 0.02
_ROUNDING = 3000  # units in the last place of the largest output: norms of constants blow rounding up


def agree(
    model: nn.Module,
    other: nn.Module,
    example: Example,
    training: bool = False,
    seeds: tuple[int, int] = (0, 0),
) -> bool:
    """Whether two modules give the same on the example, and on random numbers if the first takes them.

    An example is often all zeros, and shows little of what a network does. How far apart two outputs may lie
    depends on how far they move between the two: a large bias must not hide what else there is.
    """
    examples = [example, example.random()] if any(map(_has_fractions, example.tensors)) else [example]
    mine, theirs = (
        [outputs_of(module, each, training, seed) for each in examples]
        for module, seed in zip((model, other), seeds, strict=True)
    )
    shapes = [[one.shape for one in each or ()] for each in mine]
    if mine[-1] is None or shapes[0] != shapes[-1]:  # random numbers are not for it
        mine, theirs = mine[:1], theirs[:1]
    if any(each is None or len(each) != len(shapes[0]) for each in (*mine, *theirs)):
        return False
    return all(map(_near, zip(*mine, strict=True), zip(*theirs, strict=True)))


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


def outputs_of(
    model: nn.Module, example: Example, training: bool = False, seed: int = 0
) -> list[Tensor] | None:
    """What a network gives; None where it does not take the example."""
    try:
        with undisturbed(model, training), _WithoutDropout():
            torch.manual_seed(seed)
            return tensors_in(example.run(model))
    except Exception:  # whatever it does with numbers, or with channels, that it was not made for
        return None


def _rows(model: nn.Module, example: Example) -> list[float]:
    """How many rows each output has for a row of the input; empty where the network does not take it."""
    rows = next((len(one) for one in example.tensors if one.dim() and len(one)), 1)
    return [len(one) / rows for one in outputs_of(model, example) or [] if one.dim()]


def _near(mine: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    """Whether two networks give the same up to rounding, on one input or on two."""
    first = mine[0]
    if any((one.shape, one.dtype) != (first.shape, first.dtype) for one in theirs):
        return False
    if not _has_fractions(first):
        return all(map(torch.equal, mine, theirs))
    eps = torch.finfo(first.dtype).eps
    spread = _largest(mine[-1] - first if len(mine) > 1 else first - first.flatten()[:1])
    for one, other in zip(mine, theirs, strict=True):
        largest = _largest(one)
        near = min((100 * eps) ** 0.5, _NEAR) * min(spread or largest, largest)
        near = max(near, min(_ROUNDING * eps, _NEAR) * largest, 1e-30)
        if not torch.allclose(one, other, rtol=0.0, atol=near, equal_nan=True):
            return False
    return True


def _largest(values: Tensor) -> float:
    return float(values.abs().nan_to_num(0.0, 0.0, 0.0).max()) if values.numel() else 0.0


def _has_fractions(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
