"""A network becomes a graph of calls, with the shape of every value and a rule for every call."""

import math
import os
import threading
import traceback
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from fadeout.graph.example import Example
from fadeout.graph.network import Network
from fadeout.graph.outputs import outputs_of
from fadeout.graph.record import Recording
from fadeout.graph.rules.base import Rule, Unknown
from fadeout.graph.rules.calls import name_of
from fadeout.graph.rules.registry import MODULES, alike_rule, derived_rule, rule_of
from fadeout.graph.side_effects import undisturbed
from fadeout.torch_bridge.sharding import is_distributed


@torch.inference_mode(False)  # in which torch does not say whether a tensor was written into
def trace(model: nn.Module, example_input: Any, leaves: Iterable[Any] = ()) -> Network:
    """Record a network's forward on an example, as a graph.

    Questions that the forward asks about shapes, dtypes, flags and inputs are answered by the example, and
    the graph has the way that it took; arguments that the example does not give have their defaults.

    Args:
        model: the network; it is run on the example, in evaluation mode, and left as it was.
        example_input: a tensor, a tuple of positional arguments, or a mapping of keyword arguments.
        leaves: modules (or their classes) that the tracing shall not look into.

    >>> network = trace(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), torch.zeros(1, 4))
    >>> {node.name: tuple(shape) for node, shape in network.shapes.items()}
    {'input_1': (1, 4), '_0': (1, 8), '_1': (1, 8)}
    """
    example, chosen = Example.of(example_input), _Leaves(leaves)
    _check(model, example)
    recording = _record(model, example, chosen, training=False)
    graph = recording.graph
    modules = dict(model.named_modules(remove_duplicate=False))
    callers = defaultdict[int, list[fx.Node]](list)
    for node in graph.nodes:
        if node.op == "call_module":
            callers[id(modules[str(node.target)])].append(node)
    network = Network(
        *(model, example, graph, recording.shapes, modules, dict(callers), _entangled(model, graph)),
        follows_training=_training_arguments(recording, model, chosen, example),
        constants=recording.constants,
        derived=chosen.derived,
        leaves={id(module) for module in modules.values() if chosen.has(module)},
    )
    for node in graph.nodes:  # in order: a rule may depend on those before it
        is_leaf = id(network.module(node)) in network.leaves
        network.rules[node] = Unknown() if is_leaf else rule_of(node, network)
        before = node.all_input_nodes[:1]
        if before and len(before[0].users) > 1 and _is_in_place(node, network):
            network.overwritten.add(before[0])
    return network


def _check(model: nn.Module, example: Example) -> None:
    if any(map(is_distributed, model.parameters())):
        raise ValueError(
            "the model's parameters are distributed over processes: call fadeout.save(model, path) on "
            "all of them, and load the file in one"
        )
    if any(one.is_inference() for one in model.parameters() if not is_lazy(one)):
        raise ValueError(
            "the model was made under torch.inference_mode(), so that nothing can change it any more: make "
            "it outside, and load its state dict"
        )
    shapes = [tuple(one.shape) for one in example.tensors]
    if shapes and not any(map(math.prod, shapes)):
        raise ValueError(
            f"example_input is empty, of shape {shapes[0]}: pass one with a batch size of 1 or more"
        )


class _Leaves:
    """The modules that are not looked into: those with a rule, torch's own, and those that the user chose."""

    def __init__(self, chosen: Iterable[Any]):
        self.chosen, self.derived = tuple(chosen), dict[int, Rule]()
        """Rules for modules whose classes have none, by id."""
        self._known: dict[int, bool] = {}

    def __call__(self, module: nn.Module, args: tuple, kwargs: dict) -> bool:
        if id(module) not in self._known:  # as in the first call, in evaluation mode
            self._known[id(module)] = self._is_leaf(module, args, kwargs)
        return self._known[id(module)]

    def has(self, module: nn.Module) -> bool:
        """Whether the user chose a module."""
        return any(
            module is leaf or (isinstance(leaf, type) and isinstance(module, leaf)) for leaf in self.chosen
        )

    def _is_leaf(self, module: nn.Module, args: tuple, kwargs: dict) -> bool:
        if self.has(module):
            return True
        if type(module) in MODULES or is_parametrized(module) or isinstance(module, torch.jit.ScriptModule):
            return True
        childless = next(module.children(), None) is None
        if childless and type(module).__module__.startswith("torch."):
            return True
        rule = derived_rule(module, args, kwargs)
        if rule is None and childless:
            rule = alike_rule(module, args, kwargs)
        if rule is not None:
            self.derived[id(module)] = rule
        return rule is not None


def _record(model: nn.Module, example: Example, leaves: _Leaves, *, training: bool) -> Recording:
    recording = Recording(model, leaves)
    try:
        with _ONE_AT_A_TIME, _without_fast_path(), undisturbed(model, training):
            recording.run(example)
    except Exception as error:
        home = os.path.dirname(torch.__file__)
        frames = [f for f in traceback.extract_tb(error.__traceback__) if home not in f.filename]
        frames = [f for f in frames if os.path.dirname(__file__) not in f.filename]
        where = f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else "unknown line"
        module = (recording.path[-1] if recording.path else "") or type(model).__name__
        fails = not training and outputs_of(model, example) is None
        advice = (
            "It is so without tracing too: pass an example that the model takes"
            if fails
            else "Pass the module (or its class) in leaves=..., so that it keeps all its channels, or prune "
            "single weights with fadeout.Elements()"
        )
        raise ValueError(
            f"the model cannot be {'run' if fails else 'traced'} on its example_input: in module {module!r}, "
            f"at {where}\n({type(error).__name__}: {error})\n{advice}"
        ) from error
    return recording


_ONE_AT_A_TIME = threading.RLock()
"""What is put in the place of torch's and Python's own for a recording is there for all threads."""


@contextmanager
def _without_fast_path() -> Iterator[None]:
    """Encoders of torch run operator by operator, not as one for a whole layer, in evaluation mode too."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def _training_arguments(
    recording: Recording, model: nn.Module, leaves: _Leaves, example: Example
) -> dict[fx.Node, list[tuple[int | str, Any, Any]]] | None:
    """What follows the mode, from recordings in evaluation and training mode; see :class:`Network`."""
    buffers = {buffer: buffer.clone() for buffer in model.buffers()}
    try:
        other = _record(model, example, leaves, training=True)
    except ValueError:
        return None
    finally:
        for buffer, value in buffers.items():
            buffer.copy_(value)
    graphs = recording.graph.nodes, other.graph.nodes
    if len(graphs[0]) != len(graphs[1]) or not recording.rebuilds:
        return None
    found = defaultdict(list)
    for mine, theirs in zip(*graphs, strict=True):
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


_IN_PLACE = {"iadd", "isub", "imul", "itruediv", "setitem"}
