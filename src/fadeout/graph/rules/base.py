"""What a rule is, and the rule for operators that have none."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

if TYPE_CHECKING:
    from fadeout.compaction.cut import Surgery
    from fadeout.graph.analysis import Analysis, Flow, Network


# A value, the numbers of channels of it, and the numbers of those of the output that they belong to.
Link = tuple[fx.Node, np.ndarray, np.ndarray]


class Rule:
    """No rule: the output is not followed, and the inputs keep all their channels."""

    takes_constants = False
    """Whether constants are put in the place of channels that go."""
    keeps_alike = False
    """Whether the output always keeps the channels that the first input keeps."""

    def constants(self, node: fx.Node, a: "Analysis") -> None:
        """Follow the channels of the output, and say which are constant."""

    def needs(self, node: fx.Node, a: "Analysis") -> None:
        """Say which channels of the inputs are needed, given those of the output."""
        for one in node.all_input_nodes:
            a.need_all(one)

    def cut(self, node: fx.Node, s: "Surgery") -> None:
        """Change the module, or the call, to what is left."""

    def links(self, node: fx.Node, a: "Analysis") -> list[Link]:
        """Which channels of the inputs belong together with which of the output."""
        return []


class Leaf(Rule):
    """The network's inputs and raw parameters: nothing to need, nothing to cut."""

    def needs(self, node: fx.Node, a: "Analysis") -> None:
        pass


class Linked(Rule):
    """The output has the channels of the first input, one for one."""

    keeps_alike = True

    def constants(self, node: fx.Node, a: "Analysis") -> None:
        flow = a.flows.get(source(node))
        axis = None if flow is None or node not in a.network.shapes else self.axis(node, flow, a)
        if flow is not None and axis is not None:
            a.follow(node, axis, self.values(node, flow, a))

    def needs(self, node: fx.Node, a: "Analysis") -> None:
        for one in node.all_input_nodes:
            if one is source(node):
                a.tie(one, node)
            else:
                a.need_all(one)

    def links(self, node: fx.Node, a: "Analysis") -> list[Link]:
        return [alike(source(node), node, a)]

    def axis(self, node: fx.Node, flow: "Flow", a: "Analysis") -> int | None:
        """Where the channels lie in the output; None where they cannot be followed."""
        same = len(a.shape(node)) == len(a.shape(source(node)))
        return flow.axis if same and a.shape(node)[flow.axis] == flow.width else None

    def values(self, node: fx.Node, flow: "Flow", a: "Analysis") -> Tensor:
        """The constants of the output."""
        return flow.constant


def alike(one: fx.Node, node: fx.Node, a: "Analysis") -> Link:
    """A link one for one."""
    numbers = np.arange(a.flows[node].width)
    return one, numbers, numbers


def source(node: fx.Node) -> fx.Node:
    """The first value that goes into an operator."""
    return node.all_input_nodes[0]


def argument(node: fx.Node, place: int, name: str, default: Any = None) -> Any:
    """An argument of a call, given by place or by name."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def name_of(node: fx.Node) -> str:
    """The name of the function or method that a node calls."""
    return str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")


@torch.no_grad()
def call_with(node: fx.Node, value: Tensor, module: nn.Module | None = None) -> Tensor:
    """Call what the node calls, with a value in the place of its input."""
    if module is not None:
        return module(value)
    args = map_arg(node.args, lambda one: value)
    kwargs = map_arg(node.kwargs, lambda one: value)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    return node.target(*args, **kwargs)  # pyright: ignore


def module_of(node: fx.Node, network: "Network") -> Any:
    """The module that a node calls; None where it calls a function."""
    return network.module(node) if node.op == "call_module" else None
