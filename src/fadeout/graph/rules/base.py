"""What a rule is: all that is known of an operator."""

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx

from fadeout.graph.analysis import Analysis, Flow
from fadeout.graph.editor import Editor
from fadeout.graph.network import Network
from fadeout.graph.rules.calls import source

Of = Literal["parameters", "operations"]

# A value, the numbers of channels of it, and the numbers of those of the output that they belong to.
Link = tuple[fx.Node, np.ndarray, np.ndarray]


class Units(NamedTuple):
    """Channels of a value, each of which is made by several rows of parameters."""

    node: fx.Node
    rows: dict[str, np.ndarray]
    """By the name of the parameter in the network, (channels, rows of each)."""
    dims: dict[str, int] = {}  # noqa: RUF012 - never changed
    """By the name of the parameter, the dimension of its rows, where that is not the first."""


class Term(NamedTuple):
    """A part of a cost: ``factor`` times the product of the numbers of channels that these values keep.

    Of a convolution in several groups, which keep equal numbers, only those of one group meet.
    """

    factor: int
    nodes: tuple[fx.Node, ...]
    groups: int = 1


class Rule:
    """All that is known of an operator.

    A rule says what the operator does to channels, what it costs, and which of its parameters belong to a
    channel. Every method has a safe default: what a rule does not say is never wrong, only less small.
    """

    is_known = True
    """Whether anything is known of the operator."""
    mixes = False
    """Whether it may mix all channels by its nature, as a mean does: nobody asks why they stay."""
    weighs = False
    """Whether every output is a weighted sum of the inputs."""
    stands_beside = False
    """Whether the output has the channels of the inputs in groups, or one input's behind another's."""
    gates = False
    """Whether one half of the channels gates the other, where :meth:`halves` says so."""
    divides = False
    """Whether several values come out, which have the channels of the input between them."""
    keeps_alike = False
    """Whether the output always keeps the channels that the first input keeps."""
    fills_in = False
    """Whether the output can have any channels that its only reader wants."""
    joins = False
    """Whether several inputs have the channels of the output, and constants stand in for those they lose."""
    normalizes = False
    """Whether each channel, or each group of channels, is normalised by itself."""
    is_identity = False
    """Whether the output is the input, dropout and missing channels apart."""
    any_order = False
    """Whether the channels of inputs and output may lie in any order, as long as it is the same in both."""
    parameters: tuple[str, ...] = ("weight", "bias")
    """Those that the module must own, for the rule to hold."""

    # Which rule

    def at(self, node: fx.Node, network: Network) -> "Rule":
        """The rule for this very call: itself, or another."""
        return self

    def of_item(self, node: fx.Node) -> "Rule | None":
        """The rule for one of several outputs, ``result[i]``; None for that of any ``x[i]``."""
        return None

    def derived(self, module: Any, kind: type, args: tuple, kwargs: dict) -> "Rule | None":
        """The rule for a module of a class derived from ``kind``; None where it might do something else.

        By default, itself where the module gives on these arguments what ``kind`` would.
        """
        same = equal(module(*args, **kwargs), kind.forward(module, *args, **kwargs))  # pyright: ignore
        return self if same else None

    def is_alike(self, module: Any, args: tuple, kwargs: dict) -> bool:
        """Whether a module whose class has no rule does on these arguments what this one is for."""
        return False

    # What it does to channels

    def constants(self, node: fx.Node, a: Analysis) -> None:
        """Follow the channels of the output, and say which are constant."""

    def links(self, node: fx.Node, a: Analysis) -> list[Link]:
        """Which channels of the inputs belong together with which of the output, where that is followed."""
        return []

    def needs(self, node: fx.Node, a: Analysis) -> None:
        """Say which channels of the inputs are needed, given those of the output.

        By default, those that belong together are needed together, and all channels of other inputs are.
        """
        followed = node in a.flows
        links = a.once((node, "links"), lambda: self.links(node, a)) if followed else []
        linked = {one for one, _, _ in links}
        for one in self.inputs(node, a):
            if one not in linked:
                a.need_all(one)
        for one, theirs, ours in links:
            a.link(one, theirs, node, ours)

    def inputs(self, node: fx.Node, a: Analysis) -> list[fx.Node]:
        """The values that the output is made of."""
        return node.all_input_nodes

    def cut(self, node: fx.Node, e: Editor) -> None:
        """Change the module, or the call, to what is left."""

    # Which parameters belong to a channel of the output, by their names in the module

    def scales(self, module: Any) -> tuple[str, ...]:
        """Scale and shift, if a channel goes when they are zero, by itself."""
        return ()

    def filters(self, module: Any) -> tuple[str, ...]:
        """Those of which the slices along :meth:`dim` make the channels; a bias has one dimension only."""
        return ()

    def dim(self, module: Any) -> int:
        """The dimension of the weight along which the channels of the output lie."""
        return 0

    def units(self, node: fx.Node, a: Analysis) -> Units | None:
        """Channels that go when several rows of parameters are zero, such as the heads of an attention."""
        return None

    def zeros(self, module: Any) -> Tensor | None:
        """Which channels have no weight but zero; None where there are no weights for each."""
        return module.weight.detach().cpu() == 0 if self.scales(module) else None

    def folds(self, module: Any) -> bool:
        """Whether no constant is in its way: those other than zero can be folded into the bias exactly."""
        return True

    def halves(self, node: fx.Node, a: Analysis) -> bool:
        """Whether it is the channels of the input that are halved."""
        return False

    def computed_with(self, node: fx.Node, a: Analysis) -> list[fx.Node]:
        """Of a number of channels, who does something else with it than make as many of them."""
        return []

    # What it costs

    def per_channel(self, module: Any) -> int:
        """How many parameters there are for each channel, whatever the inputs."""
        return 0

    def terms(self, node: fx.Node, a: Analysis, of: Of) -> list[Term]:
        """The cost that depends on the numbers of channels; operations are those on the example."""
        count = self.per_channel(a.module(node)) if of == "parameters" else 0
        return [Term(count, (node,))] if count else []

    def gains_bias(self, module: Any) -> bool:
        """Whether the module gets a bias when a constant is folded into it."""
        return False

    def is_grouped(self, module: Any) -> bool:
        """Whether there are groups of several channels, which must keep equal numbers."""
        return False

    def is_depthwise(self, module: Any) -> bool:
        """Whether each channel is filtered by itself, so that it goes only with what its filters make."""
        return False

    def operations(self, module: Any, given: Any, output: Any) -> tuple[int, int]:
        """One call in the paper's convention: by the input's height and width, and by the output's."""
        return 0, 0


class Unknown(Rule):
    """For all operators without a rule: all channels of the inputs stay."""

    is_known = False


class Leaf(Rule):
    """The network's inputs and raw parameters: nothing to need, nothing to cut."""

    mixes = True

    def needs(self, node: fx.Node, a: Analysis) -> None:
        pass


class Linked(Rule):
    """The output has the channels of the first input, one for one."""

    keeps_alike = True

    def constants(self, node: fx.Node, a: Analysis) -> None:
        flow = a.flows.get(source(node))
        axis = None if flow is None or node not in a.network.shapes else self.axis(node, flow, a)
        if flow is not None and axis is not None:
            a.follow(node, axis, self.values(node, flow, a))

    def links(self, node: fx.Node, a: Analysis) -> list[Link]:
        return [alike(source(node), node, a)]

    def axis(self, node: fx.Node, flow: Flow, a: Analysis) -> int | None:
        """Where the channels lie in the output; None where they cannot be followed."""
        same = len(a.shape(node)) == len(a.shape(source(node)))
        return flow.axis if same and a.shape(node)[flow.axis] == flow.width else None

    def values(self, node: fx.Node, flow: Flow, a: Analysis) -> Tensor:
        """The constants of the output."""
        return flow.constant


def alike(one: fx.Node, node: fx.Node, a: Analysis) -> Link:
    """A link one for one: both sides have the same numbers, in one array."""
    numbers = np.arange(a.flows[node].width)
    return one, numbers, numbers


def equal(one: Any, other: Any) -> bool:
    """Whether two tensors are the same up to rounding."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.shape != other.shape:
        return False
    if one.is_meta or torch.equal(one, other):  # which is quicker by far
        return True
    return torch.allclose(one, other, rtol=1e-3, atol=1e-5 * (1 + float(other.abs().max())))
