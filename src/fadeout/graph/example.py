"""The example that a network runs on: a tensor, a tuple of arguments, or a mapping of keyword arguments."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Example:
    """Arguments of a forward: ``model(*args, **kwargs)``."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, example_input: Any) -> "Example":
        """Read what a user gives.

        >>> Example.of({"x": 1}), Example.of((1, 2)).args, Example.of([1, 2]).args
        (Example(args=(), kwargs={'x': 1}), (1, 2), ([1, 2],))
        """
        if isinstance(example_input, cls):
            return example_input
        if isinstance(example_input, Mapping):  # also the batches of transformers
            if not all(isinstance(name, str) for name in example_input):
                raise ValueError(
                    "example_input is a mapping of keyword arguments, and has keys that are no names: "
                    f"{list(example_input)}; a dictionary that is itself an argument comes in a tuple"
                )
            return cls(kwargs=dict(example_input))
        return cls(example_input if isinstance(example_input, tuple) else (example_input,))

    @property
    def tensors(self) -> list[Tensor]:
        return [one for one in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(one, Tensor)]

    def map(self, change: Any) -> "Example":
        """The same with other tensors."""

        def changed(one: Any) -> Any:
            return change(one) if isinstance(one, Tensor) else one

        args, kwargs = pytree.tree_map(changed, (self.args, self.kwargs))
        return Example(args, kwargs)

    def variants(self) -> "list[Example]":
        """Examples of another batch size, and of another image size if there are images."""
        found, tensors = [], self.tensors
        if tensors and all(one.dim() and len(one) == len(tensors[0]) > 0 for one in tensors):
            found.append(self.map(lambda one: torch.cat([one, one[:1]])))
        images = [one for one in tensors if one.dim() == 4 and one.is_floating_point()]
        if len(images) == 1:
            found.append(self.map(lambda one: one.repeat(1, 1, 2, 2) if one is images[0] else one))
        return found

    def random(self) -> "Example":
        """The same with numbers drawn from 0 to 1, always the same ones, in place of all that are not whole.

        From 0 to 1, because that much a forward can take that makes indices, roots or logarithms of them.
        """
        generator = torch.Generator("cpu").manual_seed(0)

        def drawn(one: Tensor) -> Tensor:
            if not (one.is_floating_point() or one.is_complex()) or one.layout != torch.strided:
                return one
            kind = torch.complex128 if one.is_complex() else torch.float64
            return torch.rand(one.shape, generator=generator, dtype=kind, device="cpu").to(one)

        return self.map(drawn)

    def named(self, forward: Callable[..., Any]) -> dict[str, Any]:
        """The arguments by the names that they have in a forward, in its order.

        >>> Example((1, 2, 3), {"d": 4}).named(lambda a, *b, **c: None)
        {'a': 1, 'b_0': 2, 'b_1': 3, 'd': 4}
        """
        signature, found = inspect.signature(forward), dict[str, Any]()
        for name, value in signature.bind(*self.args, **self.kwargs).arguments.items():
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                found |= {f"{name}_{i}": one for i, one in enumerate(value)}
            else:
                found |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
        return found

    def fresh(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with tensors of their own."""
        new = self.map(lambda one: one.detach().clone())
        return new.args, new.kwargs

    def run(self, model: Callable[..., Any]) -> Any:
        """What a network gives, which may write into what it is given."""
        args, kwargs = self.fresh()
        return model(*args, **kwargs)


class Field(str):
    """The name of a field of a dataclass."""


def items_of(value: Any) -> list[tuple[Any, Any]]:
    """What a tuple, a list, a mapping or a dataclass holds, each with its index, key or :class:`Field`."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if is_dataclass(value) and not isinstance(value, type):
        return [(Field(one.name), getattr(value, one.name)) for one in fields(value)]
    return []


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in what a network returns: in tuples, lists, mappings and dataclasses."""
    if isinstance(value, Tensor):
        return [value]
    return [found for _, one in items_of(value) for found in tensors_in(one)]


def as_data(value: Any) -> Any:
    """An argument as plain data: of a tensor its shape and dtype, and its value if it has only one.

    >>> as_data({"x": torch.ones(2, 3, dtype=torch.int32), "flag": True})
    {'dict': {'x': {'shape': [2, 3], 'dtype': 'int32', 'fill': 1}, 'flag': True}}
    """
    if isinstance(value, Tensor):
        data: dict[str, Any] = {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        first = None if value.is_meta or not value.numel() else value.flatten()[0]
        if first is not None and not value.is_floating_point() and bool((value == first).all()):
            data["fill"] = first.item()
        return data
    if isinstance(value, Mapping):
        return {"dict": {key: as_data(one) for key, one in value.items()}}
    if isinstance(value, list | tuple):
        return {"list" if isinstance(value, list) else "tuple": [as_data(one) for one in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"a plan cannot hold an example with a {type(value).__qualname__} in it")


def from_data(data: Any, device: torch.device | None = None) -> Any:
    """An argument that is like the one that became this data."""
    if not isinstance(data, dict):
        return data
    if "shape" in data:
        kind = getattr(torch, data["dtype"])
        return torch.full(data["shape"], data.get("fill", 0), dtype=kind, device=device)
    if "dict" in data:
        return {key: from_data(one, device) for key, one in data["dict"].items()}
    if "list" in data:
        return [from_data(one, device) for one in data["list"]]
    return tuple(from_data(one, device) for one in data["tuple"])
