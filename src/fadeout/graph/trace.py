"""A network becomes a graph of calls, with the shape of every value and a rule for every call."""

import traceback
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, fx, nn

from fadeout._arguments import fitting_example
from fadeout.graph.rules.base import Network
from fadeout.graph.rules.calls import name_of
from fadeout.graph.rules.registry import MODULES, rule_of
from fadeout.torch_bridge.modes import in_mode
from fadeout.torch_bridge.sharding import is_distributed


def trace(model: nn.Module, example_input: Any, leaves: Iterable[Any] = ()) -> Network:
    """Trace a network with ``torch.fx``.

    Args:
        model: the network; it is run once on the example, in evaluation mode, and left as it was.
        example_input: a tensor, or a tuple of tensors, that ``model(*example_input)`` takes.
        leaves: modules (or their classes) that the tracing shall not look into.

    >>> network = trace(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), torch.zeros(1, 4))
    >>> {node.name: tuple(shape) for node, shape in network.shapes.items()}
    {'input_1': (1, 4), '_0': (1, 8), '_1': (1, 8), 'output': (1, 8)}
    """
    if any(map(is_distributed, model.parameters())):
        raise ValueError(
            "the model's parameters are distributed over processes: call fadeout.save(model, path) on "
            "all of them, and load the file in one"
        )
    inputs = example_input if isinstance(example_input, tuple) else (example_input,)
    with in_mode(model, training=True):
        training_graph = _trace(model, leaves)
    with in_mode(model, training=False):
        graph = _trace(model, leaves)
        shapes = _Shapes(fx.GraphModule(model, graph)).of(inputs)
    modules = dict(model.named_modules(remove_duplicate=False))
    callers = defaultdict[int, list[fx.Node]](list)
    for node in graph.nodes:
        if node.op == "call_module":
            callers[id(modules[str(node.target)])].append(node)
    entangled, follows_training = _entangled(model, graph), _training_arguments(graph, training_graph)
    network = Network(model, inputs, graph, shapes, modules, dict(callers), entangled, follows_training)
    for node in graph.nodes:  # in order: a rule may depend on those before it
        network.rules[node] = rule_of(node, network)
        before = node.all_input_nodes[:1]
        if before and len(before[0].users) > 1 and _is_in_place(node, network):
            network.overwritten.add(before[0])
    return network


class _Tracer(fx.Tracer):
    def __init__(self, leaves: Iterable[Any]):
        super().__init__()
        self._leaves, self.path = tuple(leaves), list[str]()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        chosen = any(m is leaf or (isinstance(leaf, type) and isinstance(m, leaf)) for leaf in self._leaves)
        return chosen or type(m) in MODULES or super().is_leaf_module(m, module_qualified_name)

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
        with torch.no_grad(), fitting_example():
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
    """What follows the mode, from the graphs of evaluation and training; see :class:`Network`."""
    if len(graph.nodes) != len(other.nodes):
        return None
    found = defaultdict(list)
    for mine, theirs in zip(graph.nodes, other.nodes, strict=True):
        if (mine.op, str(mine.target), len(mine.args)) != (theirs.op, str(theirs.target), len(theirs.args)):
            return None
        here, there = ({**dict(enumerate(node.args)), **node.kwargs} for node in (mine, theirs))
        for key, value in here.items():
            if str(value) != str(there.get(key)):  # nodes of the two graphs have the same names
                if not isinstance(value, bool | int | float):
                    return None
                found[mine].append((key, value, there[key]))
    return dict(found)


def _entangled(model: nn.Module, graph: fx.Graph) -> set[int]:
    owners = defaultdict[int, set[int]](set)
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)].add(id(module))
    shared = {owner for several in owners.values() if len(several) > 1 for owner in several}
    read = [str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"]
    return shared | {id(model.get_submodule(name)) for name in read if name}


def _is_in_place(node: fx.Node, network: Network) -> bool:
    if node.op == "call_module":
        return getattr(network.module(node), "inplace", False)
    name = name_of(node)
    return name.endswith("_") or name in _IN_PLACE or node.kwargs.get("inplace", False) is True


_IN_PLACE = {"iadd", "isub", "imul", "itruediv"}
