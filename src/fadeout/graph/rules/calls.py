"""Reading the calls of a traced network."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg


def source(node: fx.Node) -> fx.Node:
    """The first value that goes into an operator."""
    return node.all_input_nodes[0]


def argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    """An argument of a call, given by position or by name."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def name_of(node: fx.Node) -> str:
    """The name of the function or method that a node calls."""
    return str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")


def worked_out(value: Any, shapes: Mapping[fx.Node, torch.Size]) -> Any:
    """A number that a call is given, or several; what is computed of sizes is what it is on the example."""

    def number(node: fx.Node) -> Any:
        if node.target == "size":
            return shapes[source(node)][node.args[1]]  # pyright: ignore
        return node.target(*map_arg(node.args, number))  # pyright: ignore

    return map_arg(value, number)


def wide_copy(module: nn.Module) -> Any:
    """A copy to ask what it gives for numbers: in evaluation mode, in float64, on the CPU."""
    return copy.deepcopy(module).cpu().double().eval()


@torch.no_grad()
def call_with(node: fx.Node, value: Tensor, module: nn.Module | None = None) -> Tensor:
    """Call what the node calls, with a value instead of its inputs."""
    if module is not None:
        return module(value)
    args = map_arg(node.args, lambda one: value)
    kwargs = map_arg(node.kwargs, lambda one: value)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    return node.target(*args, **kwargs)  # pyright: ignore
