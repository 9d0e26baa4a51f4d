"""Rules for operators that put values together or take them apart: concatenation, splitting, indexing."""

import math
from operator import getitem
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from fadeout.graph.analysis import Analysis, Flow
from fadeout.graph.editor import Editor
from fadeout.graph.network import Network
from fadeout.graph.rules.base import Link, Linked, Rule, alike
from fadeout.graph.rules.calls import argument, name_of, source, worked_out
from fadeout.graph.rules.registry import handles


@handles(calls=["cat", "concat", "concatenate"])
class Concatenated(Rule):
    """Channels one after the other; or along another dimension, where all parts keep the same channels."""

    stands_beside = True

    def constants(self, node: fx.Node, a: Analysis) -> None:
        parts, dim = self._parts(node, a), argument(node, 1, "dim", 0)
        known = [a.flows[part] for part in parts if part in a.flows]
        dim = dim % len(a.shape(node)) if isinstance(dim, int) else None
        if known and dim is not None and all(flow.axis == dim for flow in known):
            a.follow(node, dim, torch.cat([self._values(part, dim, a) for part in parts]))
        elif dim is not None and len(known) == len(parts) and len({(f.axis, f.width) for f in known}) == 1:
            values = torch.stack([flow.constant for flow in known])
            same = (values == values[:1]).all(0)
            a.follow(node, known[0].axis, torch.where(same, values[0], math.nan))

    def links(self, node: fx.Node, a: Analysis) -> list[Link]:
        if not self._lines_up(node, a):
            return [alike(part, node, a) for part in self._parts(node, a)]
        found, first = [], 0
        for part in self._parts(node, a):
            numbers = np.arange(a.shape(part)[a.flows[node].axis])
            found.append((part, numbers, first + numbers))
            first += len(numbers)
        return found

    def _parts(self, node: fx.Node, a: Analysis) -> list[fx.Node]:
        parts = list(argument(node, 0, "tensors"))
        return [part for part in parts if a.shape(part) != (0,)]  # such as begin an empty cache

    def _lines_up(self, node: fx.Node, a: Analysis) -> bool:
        """Whether it is channels that come one after the other."""
        return argument(node, 1, "dim", 0) % len(a.shape(node)) == a.flows[node].axis

    def _values(self, part: fx.Node, dim: int, a: Analysis) -> Tensor:
        if part in a.flows:
            return a.flows[part].constant
        return torch.full((a.shape(part)[dim],), math.nan, dtype=torch.float64)


@handles(calls=["chunk", "split"])
class Split(Rule):
    """``chunk`` and ``split`` of the channels; their pieces are an :class:`Item` each."""

    divides = True

    def needs(self, node: fx.Node, a: Analysis) -> None:
        pieces = self.pieces(node, a)
        if pieces is None and not self.is_beside(node, a):
            super().needs(node, a)
        elif pieces is not None and a.keep_forward:  # equal numbers: all pieces keep the same ones
            needed = a.flows[source(node)].needed
            a.grow(source(node), needed.view(len(pieces), -1).any(0).repeat(len(pieces)))

    def cut(self, node: fx.Node, e: Editor) -> None:
        pieces, before = self.pieces(node, e.analysis), e.kept(source(node))
        if pieces is not None and before is not None and not e.analysis.keep_forward:
            flow = e.analysis.flows[source(node)]
            sizes = [int(flow.needed[piece].sum()) for piece in pieces]
            e.call(node, torch.split, (source(node), sizes, flow.axis))

    def is_beside(self, node: fx.Node, a: Analysis) -> bool:
        """Whether another dimension than that of the channels is divided: each piece has them all."""
        flow = a.flows.get(source(node))
        return flow is not None and self.is_plain(node) and self.along(node, a) != flow.axis

    def is_plain(self, node: fx.Node) -> bool:
        return all(user.target is getitem for user in node.users)

    def along(self, node: fx.Node, a: Analysis) -> int:
        """The dimension that is divided."""
        return int(argument(node, 2, "dim", 0)) % len(a.shape(source(node)))

    def pieces(self, node: fx.Node, a: Analysis) -> list[Tensor] | None:
        """The channels of each piece; None where something else is divided."""
        flow = a.flows.get(source(node))
        if flow is None or not self.is_plain(node) or self.is_beside(node, a):
            return None
        number: Any = argument(node, 1, "chunks" if name_of(node) == "chunk" else "split_size_or_sections")
        number = node.kwargs.get("split_size", number)  # as Tensor.split names it
        number = worked_out(number, a.network.shapes)
        if a.keep_forward and (name_of(node) != "chunk" or flow.width % number):
            return None
        whole = torch.arange(flow.width)
        return list(whole.chunk(number) if name_of(node) == "chunk" else whole.split(number))


@handles(calls=["unbind"])
class Unbound(Split):
    """``unbind``: the dimension goes; where it is that of the channels, all of them stay."""

    divides = False

    def along(self, node: fx.Node, a: Analysis) -> int:
        return int(argument(node, 1, "dim", 0)) % len(a.shape(source(node)))

    def pieces(self, node: fx.Node, a: Analysis) -> list[Tensor] | None:
        return None


@handles(nn.GLU, calls=["glu"])
class Gated(Linked):
    """``glu``: the first half times the sigmoid of the second, so that two channels make one, and go with it.

    A channel is zero if the first of the two is; a second one that is zero gates by a half, and stays. Along
    another dimension than that of the channels, these go through one for one.
    """

    keeps_alike, gates = False, True

    def constants(self, node: fx.Node, a: Analysis) -> None:
        if not self.halves(node, a):
            return super().constants(node, a)
        flow = a.flows[source(node)]
        value, gate = flow.constant.chunk(2)
        constant = torch.where(value == 0, 0.0, value * gate.sigmoid())
        gone = None if a.dead is None else a.dead.get(a.network.key(node))
        a.follow(node, flow.axis, constant if gone is None else constant.masked_fill(gone, 0.0))

    def links(self, node: fx.Node, a: Analysis) -> list[Link]:
        if not self.halves(node, a):
            return super().links(node, a)
        pairs = self.pairs(a.flows[node].width)
        return [(source(node), pairs.T.reshape(-1), np.tile(np.arange(len(pairs)), 2))]

    def values(self, node: fx.Node, flow: Flow, a: Analysis) -> Tensor:
        return flow.constant * flow.constant.sigmoid()

    def halves(self, node: fx.Node, a: Analysis) -> bool:
        flow, module = a.flows.get(source(node)), a.module(node)
        dim = argument(node, 1, "dim", -1) if module is None else module.dim
        return flow is not None and dim % len(a.shape(node)) == flow.axis

    def pairs(self, width: int) -> np.ndarray:
        """For each channel of the output the two that make it."""
        return np.stack([np.arange(width), np.arange(width) + width], 1)


@handles(calls=["getitem"])
class Item(Linked):
    """``x[...]``: a piece of a split, a size, or a part of a tensor that leaves its channels whole."""

    keeps_alike = False

    def at(self, node: fx.Node, network: Network) -> Rule:
        return network.rules[source(node)].of_item(node) or self

    def constants(self, node: fx.Node, a: Analysis) -> None:
        piece = self._piece(node, a)
        if piece is None:
            super().constants(node, a)
        else:
            flow, dim = a.flows[source(source(node))], a.rules[source(node)].along(source(node), a)  # pyright: ignore
            gone = len(a.shape(node)) < len(a.shape(source(source(node))))
            a.follow(node, flow.axis - (gone and dim < flow.axis), flow.constant[piece])

    def inputs(self, node: fx.Node, a: Analysis) -> list[fx.Node]:
        if source(node) in a.network.shapes:
            return super().inputs(node, a)
        return [] if self._piece(node, a) is None else [source(source(node))]

    def links(self, node: fx.Node, a: Analysis) -> list[Link]:
        piece = self._piece(node, a)
        if piece is None:
            return super().links(node, a)
        pieces = a.rules[source(node)].pieces(source(node), a) if a.keep_forward else None  # pyright: ignore
        whole, own = source(source(node)), np.arange(len(piece))
        return [(whole, one.numpy(), own) for one in pieces or [piece]]

    def axis(self, node: fx.Node, flow: Flow, a: Analysis) -> int | None:
        index: Any = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
        if not all(one is None or one is ... or isinstance(one, int | slice) for one in index):
            return None
        index = tuple(slice(0, 1) if _is_computed(one) else one for one in index)  # some, but not all
        sizes = a.shape(source(node))
        line = torch.arange(flow.width).view([-1 if d == flow.axis else 1 for d in range(len(sizes))])
        picked = line.expand(sizes)[index]
        for axis, size in enumerate(picked.shape):
            whole = torch.arange(size).view([-1 if d == axis else 1 for d in range(picked.dim())])
            if size == flow.width > 1 and torch.equal(picked, whole.expand_as(picked)):
                return axis
        return None

    def _piece(self, node: fx.Node, a: Analysis) -> Tensor | None:
        rule = a.rules[source(node)]
        if not isinstance(rule, Split):
            return None
        if rule.is_beside(source(node), a):
            return torch.arange(a.flows[source(source(node))].width)
        pieces = rule.pieces(source(node), a)
        return None if pieces is None else pieces[node.args[1]]  # pyright: ignore


def _is_computed(index: Any) -> bool:
    """Whether an index is a slice whose ends are found out at run time."""
    ends = (index.start, index.stop, index.step) if isinstance(index, slice) else ()
    return any(isinstance(end, fx.Node) for end in ends)
