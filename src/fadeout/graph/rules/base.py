"""What a rule is, and what it works with: a traced network, its analysis, the copy that is cut."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, fx, nn

from fadeout.graph.example import Example
from fadeout.graph.outputs import replays
from fadeout.graph.rules.calls import source
from fadeout.torch_bridge.modes import still

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


@dataclass
class Flow:
    """What is known of the channels of one value in the graph."""

    axis: int
    """The dimension along which the channels lie."""
    constant: Tensor
    """The value that a channel has everywhere and for every input; NaN where it varies."""
    needed: Tensor
    """Which channels must be there."""
    order: Tensor | None = None
    """Their indices, where they lie in another order than before."""

    @property
    def width(self) -> int:
        return len(self.constant)

    @property
    def kept(self) -> Tensor:
        """The indices of the needed channels."""
        return self.needed.nonzero().squeeze(1) if self.order is None else self.order

    @property
    def changes(self) -> bool:
        """Whether some channels go, or lie elsewhere."""
        return self.order is not None or not bool(self.needed.all())


@dataclass(eq=False)
class Network:
    """A traced network with the shape of every value in it, as :func:`fadeout.graph.trace.trace` makes it."""

    model: nn.Module
    example: Example
    graph: fx.Graph
    shapes: dict[fx.Node, torch.Size]
    modules: dict[str, nn.Module]
    callers: dict[int, list[fx.Node]]
    """By the id of a module, the nodes that call it."""
    entangled: set[int]
    """Ids of modules that share a parameter, or whose parameters the forward reads for itself."""
    follows_training: dict[fx.Node, list[tuple[int | str, Any, Any]]] | None
    """Arguments that depend on the mode: position or name, value in evaluation, value in training.

    None where the two modes differ in more than arguments, or where what the forward returns cannot be made
    by a graph: then the user's own forward must stay.
    """
    constants: dict[str, Tensor] = field(default_factory=dict)
    """Tensors in the graph that are neither parameters nor buffers."""
    derived: "dict[int, Rule]" = field(default_factory=dict)
    """By the id of a module, its rule, where its class has none."""
    leaves: set[int] = field(default_factory=set)  # ids of modules that the user wants to stay whole
    overwritten: set[fx.Node] = field(default_factory=set)
    """Values that an operation changes in place although others read them too: not to be followed."""
    rules: "dict[fx.Node, Rule]" = field(default_factory=dict)
    _computed: dict[Any, Any] = field(default_factory=dict)

    @property
    def rewritable(self) -> bool:
        """Whether a graph can stand in for the forward: in both modes, and for inputs of other sizes."""
        return self.follows_training is not None and self.holds

    @property
    def holds(self) -> bool:
        """Whether the graph is right for other sizes of inputs, which the forward may make numbers of."""
        return self.once("holds", lambda: replays(self.model, self.graph, self.constants, self.example))

    def module(self, node: fx.Node) -> Any:
        """The module that a node calls; None where it calls a function."""
        return self.modules[str(node.target)] if node.op == "call_module" else None

    def key(self, node: fx.Node) -> str:
        """The name of a value's channels: of the module that a node calls, or of the node.

        A module without parameters that is called several times has other channels in each call.
        """
        if node.op != "call_module":
            return node.name
        shared = len(self.sites(node)) > 1 and next(self.module(node).parameters(), None) is None
        return f"{node.target} ({node.name})" if shared else str(node.target)

    def once(self, key: Any, compute: Callable[[], Any]) -> Any:
        """Compute something that no weight has a part in once for all analyses, and keep it."""
        if key not in self._computed:
            self._computed[key] = compute()
        return self._computed[key]

    def sites(self, node: fx.Node) -> list[fx.Node]:
        """All nodes that call the same module as this one."""
        return self.callers[id(self.module(node))]

    def owns(self, node: fx.Node, names: tuple[str, ...]) -> bool:
        """Whether nobody else uses the parameters of a module, and nothing computes them."""
        with still(self.module(node)):  # a spectral norm changes with every look in training mode
            for module in self.module(node).modules():
                own = (getattr(module, name, None) for name in names)
                computed = any(isinstance(one, Tensor) and not isinstance(one, nn.Parameter) for one in own)
                if id(module) in self.entangled or computed:
                    return False
        return True


@dataclass(eq=False)
class Analysis:
    """Constants and needs of every value in a network, and how the rules add to them.

    The options are those of :func:`fadeout.graph.analysis.analyse`.
    """

    network: Network
    for_inference: bool = False
    couple: bool = False
    keep_forward: bool = False
    dead: Mapping[str, Tensor] | None = None
    flows: dict[fx.Node, Flow] = field(default_factory=dict)
    changed: bool = False
    """Whether any need has grown since this was last set to false."""
    emptied: bool = False
    """Whether a layer would have lost all its channels."""
    _computed: dict[Any, Any] = field(default_factory=dict)

    @property
    def rules(self) -> "dict[fx.Node, Rule]":
        return self.network.rules

    def module(self, node: fx.Node) -> Any:
        """The module that a node calls; None where it calls a function."""
        return self.network.module(node)

    def shape(self, node: fx.Node) -> torch.Size:
        return self.network.shapes[node]

    def once(self, key: Any, compute: Callable[[], Any]) -> Any:
        """Compute something once, and keep it."""
        if key not in self._computed:
            self._computed[key] = compute()
        return self._computed[key]

    def follow(self, node: fx.Node, axis: int, constant: Tensor) -> None:
        """Follow the channels of a node's value along an axis; where it is no tensor, its heads."""
        if node in self.network.shapes:
            axis %= len(self.shape(node))
            assert self.shape(node)[axis] == len(constant), f"{node}: {self.shape(node)} along {axis}"
        gone = None if self.dead is None or node.op == "call_module" else self.dead.get(node.name)
        constant = constant if gone is None else constant.masked_fill(gone, 0.0)
        self.flows[node] = Flow(axis, constant.double(), torch.zeros(len(constant), dtype=torch.bool))

    def grow(self, node: fx.Node, needed: Tensor) -> None:
        """Some channels of a value are needed."""
        flow = self.flows.get(node)
        if flow is not None and bool((needed & ~flow.needed).any()):
            flow.needed |= needed
            self.changed = True

    def need_all(self, node: fx.Node) -> None:
        """All channels of a value are needed."""
        flow = self.flows.get(node)
        if flow is not None and not bool(flow.needed.all()):
            self.grow(node, torch.ones_like(flow.needed))

    def tie(self, one: fx.Node, other: fx.Node) -> None:
        """Two values keep the same channels."""
        if one is other:
            return
        first, second = self.flows.get(one), self.flows.get(other)
        if first is None or second is None:
            self.need_all(one)
            self.need_all(other)
        else:
            self.grow(one, second.needed)
            self.grow(other, first.needed)

    def tie_sites(self, node: fx.Node) -> None:
        """A module that is used twice has one set of channels."""
        for site in self.network.sites(node):
            self.tie(site, node)


class Editor(Protocol):
    """The copy of a network that is being cut, as the rules change it."""

    @property
    def analysis(self) -> Analysis: ...

    def module(self, node: fx.Node) -> Any:
        """The copy of the module that a node calls."""

    def kept(self, node: fx.Node) -> Tensor | None:
        """The channels of a value that stay; None where all do."""

    def slice(self, node: fx.Node, name: str, index: tuple) -> None:
        """Keep only the indexed part of a parameter or buffer, if the module has it."""

    def replace(self, node: fx.Node, module: nn.Module) -> None:
        """Replace the module that a node calls."""

    def set_bias(self, node: fx.Node, bias: Tensor) -> None:
        """Give the module a bias of these values, before it is sliced."""

    def call(self, node: fx.Node, target: Any, args: tuple, attribute: Any = None, value: int = 0) -> None:
        """Replace a call in the forward; or where a new value of an attribute does the same, set that."""

    def gather(self, side: fx.Node, node: fx.Node) -> None:
        """On the way from ``side`` to ``node``, gather the channels of the other from those of the one."""


class Rule:
    """All that is known of an operator. This one, for unknown ones, keeps all channels of the inputs.

    A rule says what the operator does to channels, what it costs, and which of its parameters belong to a
    channel. Every method has a safe default: what a rule does not say is never wrong, only less small.
    """

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

    def needs(self, node: fx.Node, a: Analysis) -> None:
        """Say which channels of the inputs are needed, given those of the output."""
        for one in node.all_input_nodes:
            a.need_all(one)

    def cut(self, node: fx.Node, e: Editor) -> None:
        """Change the module, or the call, to what is left."""

    def links(self, node: fx.Node, a: Analysis) -> list[Link]:
        """Which channels of the inputs belong together with which of the output."""
        return []

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


class Leaf(Rule):
    """The network's inputs and raw parameters: nothing to need, nothing to cut."""

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

    def needs(self, node: fx.Node, a: Analysis) -> None:
        for one in node.all_input_nodes:
            if one is source(node):
                a.tie(one, node)
            else:
                a.need_all(one)

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
    """A link one for one."""
    numbers = np.arange(a.flows[node].width)
    return one, numbers, numbers


def equal(one: Any, other: Any) -> bool:
    """Whether two tensors are the same up to rounding."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.shape != other.shape:
        return False
    if one.is_meta or torch.equal(one, other):  # which is quicker by far
        return True
    return torch.allclose(one, other, rtol=1e-3, atol=1e-5 * (1 + float(other.abs().max())))
