"""The rule for :class:`fadeout.graph.gather.Gather`, so that a compact network can be compacted again."""

import math

import numpy as np
import torch
from torch import Tensor, fx, nn

from fadeout.graph.analysis import Analysis, Flow
from fadeout.graph.editor import Editor
from fadeout.graph.gather import Gather
from fadeout.graph.network import Network
from fadeout.graph.rules.base import Link, Rule, Unknown
from fadeout.graph.rules.calls import source
from fadeout.graph.rules.registry import handles


@handles(Gather)
class Gathered(Rule):
    """An output is one of the inputs, or a constant.

    Inputs that have become constant are not needed where they would not be needed without a ``Gather``.
    In its index, the number after the last input means none.
    """

    fills_in = True
    is_identity = True

    def at(self, node: fx.Node, network: Network) -> Rule:
        return self if len(network.sites(node)) == 1 else Unknown()

    def constants(self, node: fx.Node, a: Analysis) -> None:
        a.follow(node, a.module(node).axis, self._values(node, a))

    def needs(self, node: fx.Node, a: Analysis) -> None:
        flow, before = a.flows.get(node), self._before(node, a)
        if flow is None or before is None:
            return super().needs(node, a)
        needed = torch.zeros(before.width + 1, dtype=torch.bool)
        needed[self._index(node, a)[flow.needed]] = True
        stands_in = all(a.rules[user].joins for user in node.users)
        a.grow(source(node), needed[:-1] & before.constant.isnan() if stands_in else needed[:-1])

    def cut(self, node: fx.Node, e: Editor) -> None:
        outputs, inputs = e.kept(node), e.kept(source(node))
        if outputs is None and inputs is None:
            return
        a, old = e.analysis, e.analysis.module(node)
        index, width = self._index(node, a), self._width(node, a)
        inputs = torch.arange(width) if inputs is None else inputs
        outputs = torch.arange(len(index)) if outputs is None else outputs
        position = torch.full((width + 1,), -1).index_copy_(0, inputs, torch.arange(len(inputs)))
        index, constant = position[index][outputs], self._values(node, a).nan_to_num(0.0)[outputs]
        if torch.equal(index, torch.arange(len(inputs))):
            new = nn.Identity()
        else:
            new = Gather(index, constant.to(old.constant.dtype), width=len(inputs), axis=old.axis)
        e.replace(node, new.to(old.constant.device).train(old.training))

    def links(self, node: fx.Node, a: Analysis) -> list[Link]:
        index = self._index(node, a).numpy()
        there = index < self._width(node, a)
        return [(source(node), index[there], np.arange(len(index))[there])]

    def _index(self, node: fx.Node, a: Analysis) -> Tensor:
        return a.module(node).index.cpu()

    def _width(self, node: fx.Node, a: Analysis) -> int:
        return a.shape(source(node))[a.module(node).axis]

    def _before(self, node: fx.Node, a: Analysis) -> Flow | None:
        flow = a.flows.get(source(node))
        return flow if flow is not None and flow.axis == a.module(node).axis else None

    def _values(self, node: fx.Node, a: Analysis) -> Tensor:
        """The constants of the outputs; NaN where they vary."""
        flow, width, index = self._before(node, a), self._width(node, a), self._index(node, a)
        unknown = torch.full((width + 1,), math.nan).double()
        known = unknown if flow is None else torch.cat([flow.constant, unknown[:1]])
        return torch.where(index == width, a.module(node).constant.cpu().double(), known[index])
