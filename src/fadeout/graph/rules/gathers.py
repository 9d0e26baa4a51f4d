"""The rule for :class:`fadeout.graph.gather.Place`, so that a compact network can be compacted again."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from fadeout.graph.gather import Place
from fadeout.graph.rules.base import Link, Rule, source

if TYPE_CHECKING:
    from fadeout.compaction.cut import Surgery
    from fadeout.graph.analysis import Analysis, Flow


class Placed(Rule):
    """An output is one of the inputs, or a constant.

    Inputs that have become constant are not needed where they would not be needed without a ``Place``.
    """

    def constants(self, node: fx.Node, a: "Analysis") -> None:
        module, index = self._parts(node, a)
        known = torch.cat([self._known(node, a), torch.full((1,), math.nan).double()])[index]
        missing = index == self._width(node, a)
        a.follow(node, module.axis, torch.where(missing, module.constant.cpu().double(), known))

    def needs(self, node: fx.Node, a: "Analysis") -> None:
        flow, before = a.flows.get(node), self._before(node, a)
        if flow is None or before is None:
            return super().needs(node, a)
        _, index = self._parts(node, a)
        needed = torch.zeros(before.width + 1, dtype=torch.bool)
        needed[index[flow.needed]] = True
        stands_in = all(a.rules[user].takes_constants for user in node.users)
        a.grow(source(node), needed[:-1] & before.constant.isnan() if stands_in else needed[:-1])
        return None

    def cut(self, node: fx.Node, s: "Surgery") -> None:
        outputs, inputs = s.kept(node), s.kept(source(node))
        if outputs is None and inputs is None:
            return
        module, index = self._parts(node, s.analysis)
        width = self._width(node, s.analysis)
        inputs = torch.arange(width) if inputs is None else inputs
        position = torch.full((width + 1,), -1).index_copy_(0, inputs, torch.arange(len(inputs)))
        standing_in = torch.cat([self._known(node, s.analysis).nan_to_num(0.0), torch.zeros(1).double()])[
            index
        ]
        constant = torch.where(index == width, module.constant.cpu().double(), standing_in)
        if outputs is not None:
            index, constant = index[outputs], constant[outputs]
        s.replace(node, self._place(position[index], constant, len(inputs), module))

    def links(self, node: fx.Node, a: "Analysis") -> list[Link]:
        _, index = self._parts(node, a)
        there = (index < self._width(node, a)).numpy()
        return [(source(node), index.numpy()[there], np.arange(len(index))[there])]

    def _place(self, index: Tensor, constant: Tensor, width: int, old: Any) -> nn.Module:
        if torch.equal(index, torch.arange(width)):
            return nn.Identity().train(old.training)
        new = Place(index, constant.to(old.constant.dtype), width=width, axis=old.axis)
        return new.to(old.constant.device).train(old.training)

    def _parts(self, node: fx.Node, a: "Analysis") -> tuple[Any, Tensor]:
        """The module, and for each output the number of its input; that after the last where it has none."""
        module: Any = a.network.module(node)
        return module, module.index.cpu()

    def _width(self, node: fx.Node, a: "Analysis") -> int:
        return a.shape(source(node))[a.network.module(node).axis]  # pyright: ignore

    def _before(self, node: fx.Node, a: "Analysis") -> "Flow | None":
        flow = a.flows.get(source(node))
        return flow if flow is not None and flow.axis == a.network.module(node).axis else None

    def _known(self, node: fx.Node, a: "Analysis") -> Tensor:
        """The constants of the inputs."""
        flow = self._before(node, a)
        return torch.full((self._width(node, a),), math.nan).double() if flow is None else flow.constant


def fills_in(node: fx.Node, a: "Analysis") -> bool:
    """Whether a value can have any channels that its only reader wants, since it comes out of a ``Place``."""
    return isinstance(a.rules[node], Placed) and len(node.users) == 1
