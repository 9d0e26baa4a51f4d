"""Rules for recurrent networks: whole hidden units go."""

import math
from operator import getitem
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from fadeout.graph.analysis import Analysis
from fadeout.graph.editor import Editor
from fadeout.graph.network import Network
from fadeout.graph.rules.base import Leaf, Link, Of, Rule, Term, Units, Unknown
from fadeout.graph.rules.calls import source
from fadeout.graph.rules.registry import handles

_GATES = {nn.RNN: 1, nn.GRU: 3, nn.LSTM: 4}
_CANDIDATE = {nn.RNN: 0, nn.GRU: 2, nn.LSTM: 2}  # the gate without which a unit stays at zero


@handles(nn.RNN, nn.GRU)
class Recurrent(Rule):
    """A unit is zero for ever if it begins there and the rows of its candidate gate are zero.

    Of an LSTM that is the cell's gate, ``c = f c + i tanh(0)``, of a GRU the new state's,
    ``h = (1 - z) tanh(0) + z h``. All layers and directions have one number of units, and lose the same ones.
    What is followed at the node of the module are its units; the features of the output are those of
    :class:`RecurrentOutput`. The module stays whole where it is given a state to begin with, or a packed
    sequence, or is called twice.
    """

    def at(self, node: fx.Node, network: Network) -> Rule:
        plain = len(node.all_input_nodes) == 1 and len(network.sites(node)) == 1
        known = plain and source(node) in network.shapes and not network.module(node).proj_size
        return self if known and all(user.target is getitem for user in node.users) else Unknown()

    def of_item(self, node: fx.Node) -> Rule:
        return RecurrentOutput()

    def constants(self, node: fx.Node, a: Analysis) -> None:
        module = a.module(node)
        speaks = torch.ones(module.hidden_size, dtype=torch.bool)
        if a.dead is None:
            silent = [getattr(module, name).detach().cpu()[_rows(module)] == 0 for name in _names(module)]
            speaks = ~torch.stack([one.view(len(one), -1).all(1) for one in silent]).all(0)
        elif str(node.target) in a.dead:
            speaks = ~a.dead[str(node.target)]
        a.follow(node, 0, torch.where(speaks, math.nan, 0.0))

    def needs(self, node: fx.Node, a: Analysis) -> None:
        before, units = source(node), a.flows[node]
        a.grow(node, units.constant.isnan())  # they read each other
        flow = a.flows.get(before)
        if flow is None or flow.axis != len(a.shape(before)) - 1:
            return a.need_all(before)
        a.grow(before, self._reads(node, a)[units.needed].any(0) & (flow.constant != 0))

    def cut(self, node: fx.Node, e: Editor) -> None:
        units, inputs = e.kept(node), e.kept(source(node))
        if units is None and inputs is None:
            return
        module = e.module(node)
        size, directions = module.hidden_size, 1 + module.bidirectional
        units = torch.arange(size) if units is None else units
        inputs = torch.arange(module.input_size) if inputs is None else inputs
        rows = torch.cat([units + gate * size for gate in range(_GATES[type(module)])])
        below = torch.cat([units + direction * size for direction in range(directions)])
        for name in _names(module):
            columns = units if "_hh" in name else inputs if "_l0" in name else below
            e.slice(node, name, (rows[:, None], columns) if name.startswith("weight") else (rows,))
        module.input_size, module.hidden_size = len(inputs), len(units)

    def units(self, node: fx.Node, a: Analysis) -> Units | None:
        module = a.module(node)
        rows = _rows(module).numpy()[:, None]
        return Units(node, {f"{node.target}.{name}": rows for name in _names(module)})

    def terms(self, node: fx.Node, a: Analysis, of: Of) -> list[Term]:
        module, before = a.module(node), source(node)
        shape, gates, layers = a.shape(before), _GATES[type(module)], module.num_layers
        often = shape.numel() // shape[-1] if of == "operations" else 1
        first = gates * (1 + module.bidirectional)  # rows for a unit in the first layer
        flow = a.flows.get(before)
        read = flow is not None and flow.axis == len(shape) - 1
        inner = first * (layers + (layers - 1) * (1 + module.bidirectional))
        terms = [Term(first * often, (node, before)) if read else Term(first * often * shape[-1], (node,))]
        terms.append(Term(inner * often, (node, node)))
        biases = 2 * first * layers if module.bias and of == "parameters" else 0
        return [*terms, Term(biases, (node,))] if biases else terms

    def _reads(self, node: fx.Node, a: Analysis) -> Tensor:
        """Which unit reads which input."""
        module = a.module(node)

        def compute() -> Tensor:
            names = [name for name in _names(module) if name.startswith("weight_ih_l0")]
            weights = torch.stack([getattr(module, name).detach().cpu() != 0 for name in names]).any(0)
            return weights.view(-1, module.hidden_size, module.input_size).any(0)

        everything = torch.ones(module.hidden_size, module.input_size, dtype=torch.bool)
        return everything if a.dead is not None else a.once((node, "reads"), compute)


@handles(nn.LSTM)
class LongShort(Recurrent):
    """Beside the outputs, it gives a pair: the last states of outputs and cells."""

    def of_item(self, node: fx.Node) -> Rule:
        return RecurrentOutput() if node.args[1] == 0 else States()


class States(Leaf):
    def of_item(self, node: fx.Node) -> Rule:
        return RecurrentOutput()


class RecurrentOutput(Rule):
    """The outputs of all steps, or the last states."""

    def constants(self, node: fx.Node, a: Analysis) -> None:
        constant = a.flows[_module_of(node)].constant
        width = a.shape(node)[-1]  # the directions of an output lie one behind the other
        a.follow(node, len(a.shape(node)) - 1, constant.repeat(width // len(constant)))

    def inputs(self, node: fx.Node, a: Analysis) -> list[fx.Node]:
        return [_module_of(node)]

    def links(self, node: fx.Node, a: Analysis) -> list[Link]:
        numbers = np.arange(a.flows[node].width)
        return [(_module_of(node), numbers % a.flows[_module_of(node)].width, numbers)]


def _module_of(node: fx.Node) -> fx.Node:
    """The node of the network that an output belongs to."""
    while node.op != "call_module":
        node = source(node)
    return node


def _names(module: Any) -> list[str]:
    return [name for name, _ in module.named_parameters()]


def _rows(module: Any) -> Tensor:
    """For each unit the row of its candidate gate."""
    return torch.arange(module.hidden_size) + _CANDIDATE[type(module)] * module.hidden_size
