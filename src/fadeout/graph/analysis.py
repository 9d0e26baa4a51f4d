"""How channels flow through a traced network: which are constant, and which somebody needs.

A *channel* is a slice of an activation along one axis: a feature map of a convolution, a feature of a
linear layer, a head of an attention. For each value in the graph a :class:`Flow` says along which axis its
channels lie, which of them are constant (found in a pass from the inputs to the outputs) and which are
needed by anybody (found in passes from the outputs back, repeated until nothing changes). A channel that
nobody needs can go. What each operator does to channels stands in :mod:`.rules`; an operator without
a rule needs all that it is given, which is never wrong, only less small.
"""

import itertools
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from fadeout.graph.gather import Place
from fadeout.graph.heads import PARAMETERS, Heads
from fadeout.graph.rules import rule_of
from fadeout.graph.rules.base import Rule
from fadeout.torch_bridge.modes import in_mode
from fadeout.torch_bridge.sharding import is_distributed


@dataclass
class Flow:
    """What is known of the channels of one value in the graph."""

    axis: int
    """The dimension along which the channels lie."""
    constant: Tensor
    """The value that a channel has everywhere and for every input; NaN where it varies."""
    needed: Tensor
    """Which channels must be there."""

    @property
    def width(self) -> int:
        return len(self.constant)

    @property
    def kept(self) -> Tensor:
        """The indices of the needed channels."""
        return self.needed.nonzero().squeeze(1)


class Network:
    """A traced network with the shape of every value in it.

    Args:
        model: the network; it is run once on the example, in evaluation mode, and left as it was.
        example_input: a tensor, or a tuple of tensors, that ``model(*example_input)`` takes.
        leaves: modules (or their classes) that the tracing shall not look into.
    """

    def __init__(self, model: nn.Module, example_input: Any, leaves: Iterable[Any] = ()):
        if any(map(is_distributed, model.parameters())):
            raise ValueError(
                "the model's parameters are distributed over processes: call fadeout.save(model, path) on "
                "all of them, and load the file in one"
            )
        self.model = model
        self.inputs = example_input if isinstance(example_input, tuple) else (example_input,)
        with in_mode(model, training=True):
            training_graph = _trace(model, leaves)
        with in_mode(model, training=False):
            self.graph = _trace(model, leaves)
            self.shapes = _Shapes(fx.GraphModule(model, self.graph)).of(self.inputs)
        self.follows_training = _training_arguments(self.graph, training_graph)
        self.modules = dict(model.named_modules(remove_duplicate=False))
        sites = defaultdict[int, list[fx.Node]](list)
        for node in self.graph.nodes:
            if node.op == "call_module":
                sites[id(self.module(node))].append(node)
        self._sites = dict(sites)
        self._entangled = _entangled(model, self.graph)
        self.rules: dict[fx.Node, Rule] = {}
        for node in self.graph.nodes:  # in order: a rule may depend on those before it
            self.rules[node] = rule_of(node, self)
        self.overwritten = _overwritten(self)

    def module(self, node: fx.Node) -> nn.Module:
        """The module that a node calls."""
        return self.modules[str(node.target)]

    def is_plain(self, node: fx.Node) -> bool:
        """Whether a module can be cut: nobody else uses its parameters, and nothing computes them."""
        for module in self.module(node).modules():
            own = (getattr(module, name, None) for name in ("weight", "bias", *PARAMETERS))
            computed = any(isinstance(one, Tensor) and not isinstance(one, nn.Parameter) for one in own)
            if id(module) in self._entangled or computed:
                return False
        return True

    def sites(self, node: fx.Node) -> list[fx.Node]:
        """All nodes that call the same module as this one."""
        return self._sites[id(self.module(node))]


class Analysis:
    """Constants and needs of every value in a network.

    Args:
        network: the traced network.
        for_inference: take constants out of batch-norm's running statistics too, which holds only in
            evaluation mode.
        couple: both sides of an addition keep the same channels.
        keep_forward: only what the user's own ``forward`` can run: nothing is placed by index, no number
            that is written in it changes.
        dead: batch-norm channels (by module name) to be taken as removed, while all other weights count as
            alive, whatever they hold. This is how a choice of channels is weighed before it is made.
        whole: everything is needed.
    """

    def __init__(
        self,
        network: Network,
        *,
        for_inference: bool = False,
        couple: bool = False,
        keep_forward: bool = False,
        dead: Mapping[str, Tensor] | None = None,
        whole: bool = False,
    ):
        self.network, self.for_inference, self.dead = network, for_inference, dead
        self.couple, self.keep_forward = couple or keep_forward, keep_forward
        self.flows: dict[fx.Node, Flow] = {}
        self.rules = network.rules
        self._kept: dict[Any, Any] = {}
        for node, rule in self.rules.items():
            rule.constants(node, self)
            if node in network.overwritten:
                self.flows.pop(node, None)
        if whole:
            for flow in self.flows.values():
                flow.needed.fill_(True)
        ways = itertools.cycle((list(reversed(self.rules.items())), list(self.rules.items())))
        self._changed = True
        while self._changed:  # back and forth: needs travel both ways, and so arrive sooner
            self._changed = False
            for node, rule in next(ways):
                rule.needs(node, self)
            if not self._changed:
                self._keep_one()

    def _keep_one(self) -> None:
        """No layer vanishes altogether: modules without channels cannot run.

        From the end on, so that what the last of them needs may do for those before it. Values that keep what
        their source keeps are left to it.
        """
        for node, rule in reversed(self.rules.items()):
            flow = self.flows.get(node)
            if flow is not None and not flow.needed.any() and not rule.keeps_alike:
                self.grow(node, torch.arange(flow.width) == 0)
            if self._changed:
                rule.needs(node, self)

    def once(self, key: Any, compute: Callable[[], Any]) -> Any:
        """Compute something once, and keep it."""
        if key not in self._kept:
            self._kept[key] = compute()
        return self._kept[key]

    def shape(self, node: fx.Node) -> torch.Size:
        return self.network.shapes[node]

    def follow(self, node: fx.Node, axis: int, constant: Tensor) -> None:
        """Follow the channels of a node's value along an axis; where it is no tensor, its heads."""
        if node in self.network.shapes:
            axis %= len(self.shape(node))
            assert self.shape(node)[axis] == len(constant), f"{node}: {self.shape(node)} along {axis}"
        self.flows[node] = Flow(axis, constant.double(), torch.zeros(len(constant), dtype=torch.bool))

    def grow(self, node: fx.Node, needed: Tensor) -> None:
        """Some channels of a value are needed."""
        flow = self.flows.get(node)
        if flow is not None and bool((needed & ~flow.needed).any()):
            flow.needed |= needed
            self._changed = True

    def need_all(self, node: fx.Node) -> None:
        """All channels of a value are needed."""
        flow = self.flows.get(node)
        if flow is not None and not bool(flow.needed.all()):
            self.grow(node, torch.ones_like(flow.needed))

    def tie(self, one: fx.Node, other: fx.Node) -> None:
        """Two values keep the same channels."""
        first, second = self.flows.get(one), self.flows.get(other)
        if first is None or second is None:
            self.need_all(one)
            self.need_all(other)
        else:
            self.grow(one, second.needed)
            self.grow(other, first.needed)


class _Tracer(fx.Tracer):
    def __init__(self, leaves: Iterable[Any]):
        super().__init__()
        self._leaves, self.path = tuple(leaves), list[str]()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        leaves = (*self._leaves, Heads, Place)
        chosen = any(m is leaf or (isinstance(leaf, type) and isinstance(m, leaf)) for leaf in leaves)
        return chosen or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        self.path.append(self.path_of_module(m))
        result = super().call_module(m, forward, args, kwargs)
        self.path.pop()
        return result


def _trace(model: nn.Module, leaves: Iterable[Any]) -> fx.Graph:
    tracer = _Tracer(leaves)
    try:
        return tracer.trace(model)
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "/torch/" not in f.filename]
        where = f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else "unknown line"
        module = tracer.path[-1] if tracer.path else type(model).__name__
        raise ValueError(
            f"the network cannot be traced: in module {module!r}, at {where}\n({error})\n"
            "Pass the module (or its class) in leaves=..., so that it keeps all its channels, or prune "
            "single weights with fadeout.Elements()"
        ) from error


class _Shapes(fx.Interpreter):
    """Run the network once, and note the shape of every tensor."""

    def of(self, inputs: tuple[Any, ...]) -> dict[fx.Node, torch.Size]:
        self.shapes: dict[fx.Node, torch.Size] = {}
        with torch.no_grad():
            self.run(*inputs)
        return self.shapes

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.shapes[n] = result.shape
        return result


def _training_arguments(
    graph: fx.Graph, other: fx.Graph
) -> dict[fx.Node, list[tuple[int | str, Any, Any]]] | None:
    """Arguments that depend on ``self.training``: their place, and their values in evaluation and training.

    None where the two graphs differ in more than arguments: then the forward has two ways.
    """
    if len(graph.nodes) != len(other.nodes):
        return None
    found = defaultdict(list)
    for mine, theirs in zip(graph.nodes, other.nodes, strict=True):
        if (mine.op, str(mine.target), len(mine.args)) != (theirs.op, str(theirs.target), len(theirs.args)):
            return None
        here, there = ({**dict(enumerate(node.args)), **node.kwargs} for node in (mine, theirs))
        for place, value in here.items():
            if str(value) != str(there.get(place)):  # nodes of the two graphs have the same names
                if not isinstance(value, bool | int | float):
                    return None
                found[mine].append((place, value, there[place]))
    return dict(found)


def _entangled(model: nn.Module, graph: fx.Graph) -> set[int]:
    """Modules that share a parameter with another, or whose parameters the forward reads for itself."""
    owners = defaultdict[int, set[int]](set)
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)].add(id(module))
    shared = {owner for several in owners.values() if len(several) > 1 for owner in several}
    read = [str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"]
    return shared | {id(model.get_submodule(name)) for name in read if name}


def _overwritten(network: Network) -> set[fx.Node]:
    """Values that an operation changes in place although others read them too: not to be followed."""
    found = set()
    for node in network.graph.nodes:
        before = node.all_input_nodes[:1]
        if before and len(before[0].users) > 1 and _is_in_place(node, network):
            found.add(before[0])
    return found


def _is_in_place(node: fx.Node, network: Network) -> bool:
    if node.op == "call_module":
        return getattr(network.module(node), "inplace", False)
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    return name.endswith("_") or name in _IN_PLACE or node.kwargs.get("inplace", False) is True


_IN_PLACE = {"iadd", "isub", "imul", "itruediv"}
