"""Rules for operators that move channels about: reshaping, concatenation, splitting."""

import math
from abc import ABC, abstractmethod
from operator import getitem
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from fadeout.graph.rules.base import Analysis, Editor, Flow, Leaf, Link, Linked, Network, Rule, alike
from fadeout.graph.rules.calls import argument, call_with, name_of, source
from fadeout.graph.rules.registry import handles, versions


class Regrouped(Rule, ABC):
    """Each channel of one side stands for several of the other, next to each other.

    Flattening spreads a channel over its positions; splitting features into heads, and pixel shuffle, gather
    several into one. ``factor`` is the number of outputs for an input, or its inverse.
    """

    @abstractmethod
    def factor(self, node: fx.Node, flow: Flow, a: Analysis) -> tuple[int, int, int] | None:
        """The output's axis, how many outputs an input becomes, how many inputs an output comes from."""

    def constants(self, node: fx.Node, a: Analysis) -> None:
        found = self._found(node, a)
        if found is not None:
            flow, axis, spread, gathered = found
            values = flow.constant.repeat_interleave(spread).view(-1, gathered)
            a.follow(node, axis, torch.where((values == values[:, :1]).all(1), values[:, 0], math.nan))

    def needs(self, node: fx.Node, a: Analysis) -> None:
        found, after = self._found(node, a), a.flows.get(node)
        if found is None or after is None:
            return super().needs(node, a)
        before, _, spread, gathered = found
        a.grow(node, before.needed.repeat_interleave(spread).view(-1, gathered).any(1))
        a.grow(source(node), after.needed.repeat_interleave(gathered).view(-1, spread).any(1))

    def links(self, node: fx.Node, a: Analysis) -> list[Link]:
        found = self._found(node, a)
        if found is None:
            return []
        flow, _, spread, gathered = found
        numbers = np.arange(flow.width * spread)
        return [(source(node), numbers // spread, numbers // gathered)]

    def _found(self, node: fx.Node, a: Analysis) -> tuple[Flow, int, int, int] | None:
        """The flow of the input, and the factor."""
        flow = a.flows.get(source(node))
        found = None if flow is None or node not in a.network.shapes else self.factor(node, flow, a)
        return None if flow is None or found is None else (flow, *found)


@handles(*versions("PixelShuffle", "PixelUnshuffle"), calls=["pixel_shuffle", "pixel_unshuffle"])
class Shuffled(Regrouped):
    """Pixel shuffle and its inverse."""

    def factor(self, node: fx.Node, flow: Flow, a: Analysis) -> tuple[int, int, int] | None:
        after = a.shape(node)[flow.axis]
        if flow.axis != len(a.shape(node)) - 3:
            return None
        return flow.axis, max(after // flow.width, 1), max(flow.width // after, 1)


@handles(nn.Flatten, nn.Unflatten, calls=["flatten", "reshape", "view", "unflatten"])
class Reshaped(Regrouped):
    """``reshape``, ``view``, ``flatten``, ``unflatten`` where they leave the order of channels."""

    def factor(self, node: fx.Node, flow: Flow, a: Analysis) -> tuple[int, int, int] | None:
        old, new = a.shape(source(node)), a.shape(node)
        ahead, behind = math.prod(old[: flow.axis]), math.prod(old[flow.axis + 1 :])
        for axis, size in enumerate(new):
            if math.prod(new[:axis]) != ahead or size == 1 != flow.width:
                continue
            after = math.prod(new[axis + 1 :])
            divides = size % flow.width == 0 or flow.width % size == 0
            if not divides or size * after != flow.width * behind:
                continue
            found = axis, max(size // flow.width, 1), max(flow.width // size, 1)
            number = self.size(node, axis, a)
            cannot_change = a.keep_forward or not self._sizes(node, a)
            return None if isinstance(number, int) and cannot_change else found
        return None

    def needs(self, node: fx.Node, a: Analysis) -> None:
        for one in node.all_input_nodes[1:]:
            if one in a.network.shapes:  # not a size but a value
                a.need_all(one)
        number = self.size(node, a.flows[node].axis, a) if node in a.flows else None
        if isinstance(number, fx.Node) and not _is_size(number, a):  # where it is, Size sees to it
            a.need_all(node)
        super().needs(node, a)

    def cut(self, node: fx.Node, e: Editor) -> None:
        kept, a = e.kept(node), e.analysis
        if kept is not None and isinstance(self.size(node, a.flows[node].axis, a), int):
            sizes = self._sizes(node, a)
            sizes[a.flows[node].axis] = len(kept)
            whole = isinstance(argument(node, 1, "shape"), list | tuple)
            args = (node.args[0], tuple(sizes)) if whole else (node.args[0], *sizes)
            e.call(node, node.target, args)

    def size(self, node: fx.Node, axis: int, a: Analysis) -> int | fx.Node | None:
        """What the call gives as the size of this dimension; None where it leaves that open."""
        sizes, position = self._sizes(node, a), axis
        if not sizes:
            dim, sizes = self._unflattened(node, a)
            position = axis - dim
        number = sizes[position] if 0 <= position < len(sizes) else None
        return None if isinstance(number, int) and number == -1 else number

    def _sizes(self, node: fx.Node, a: Analysis) -> list[Any]:
        """The sizes that are given to ``reshape`` or ``view``; a shape of another value stands for all."""
        if name_of(node) not in ("reshape", "view"):
            return []
        first = argument(node, 1, "shape")
        sizes = list(first) if isinstance(first, list | tuple) else list(node.args[1:])
        return sizes * len(a.shape(node)) if len(sizes) == 1 else sizes

    def _unflattened(self, node: fx.Node, a: Analysis) -> tuple[int, list[Any]]:
        """The dimension that ``unflatten`` divides, and the sizes of its parts."""
        module = a.module(node)
        if isinstance(module, nn.Unflatten):
            dim, sizes = module.dim, module.unflattened_size
        else:
            dim, sizes = argument(node, 1, "dim"), argument(node, 2, "sizes")
        unflattens = isinstance(sizes, list | tuple) and isinstance(dim, int)
        return (dim % len(a.shape(source(node))), list(sizes)) if unflattens else (0, [])


@handles(calls=["cat", "concat", "concatenate"])
class Concatenated(Rule):
    """Channels one after the other."""

    def constants(self, node: fx.Node, a: Analysis) -> None:
        parts, dim = self._parts(node), argument(node, 1, "dim", 0)
        known = [a.flows[part] for part in parts if part in a.flows]
        dim = dim % len(a.shape(node)) if isinstance(dim, int) else None
        if known and all(flow.axis == dim for flow in known):
            a.follow(node, dim, torch.cat([self._values(part, dim, a) for part in parts]))  # pyright: ignore

    def needs(self, node: fx.Node, a: Analysis) -> None:
        flow = a.flows.get(node)
        if flow is None:
            return super().needs(node, a)
        parts = self._parts(node)
        sizes = [a.shape(part)[flow.axis] for part in parts]
        for part, needed in zip(parts, flow.needed.split(sizes), strict=True):
            a.grow(part, needed)
        whole = [torch.ones(size, dtype=torch.bool) for size in sizes]
        stays = [a.flows[p].needed if p in a.flows else all_ for p, all_ in zip(parts, whole, strict=True)]
        a.grow(node, torch.cat(stays))

    def links(self, node: fx.Node, a: Analysis) -> list[Link]:
        found, first = [], 0
        for part in self._parts(node):
            numbers = np.arange(a.shape(part)[a.flows[node].axis])
            found.append((part, numbers, first + numbers))
            first += len(numbers)
        return found

    def _parts(self, node: fx.Node) -> list[fx.Node]:
        return list(argument(node, 0, "tensors"))

    def _values(self, part: fx.Node, dim: int, a: Analysis) -> Tensor:
        if part in a.flows:
            return a.flows[part].constant
        return torch.full((a.shape(part)[dim],), math.nan, dtype=torch.float64)


@handles(calls=["chunk", "split"])
class Split(Rule):
    """``chunk`` and ``split`` of the channels; their pieces are an :class:`Item` each."""

    def needs(self, node: fx.Node, a: Analysis) -> None:
        if self.pieces(node, a) is None:
            super().needs(node, a)

    def cut(self, node: fx.Node, e: Editor) -> None:
        pieces, before = self.pieces(node, e.analysis), e.kept(source(node))
        if pieces is not None and before is not None:
            flow = e.analysis.flows[source(node)]
            sizes = [int(flow.needed[piece].sum()) for piece in pieces]
            e.call(node, torch.split, (source(node), sizes, flow.axis))

    def pieces(self, node: fx.Node, a: Analysis) -> list[Tensor] | None:
        """The channels of each piece; None where something else is split."""
        flow, dim = a.flows.get(source(node)), argument(node, 2, "dim", 0)
        plain = all(user.target is getitem for user in node.users)
        if flow is None or not plain or a.keep_forward or dim % len(a.shape(source(node))) != flow.axis:
            return None
        number: Any = argument(node, 1, "chunks" if name_of(node) == "chunk" else "split_size_or_sections")
        number = node.kwargs.get("split_size", number)  # as Tensor.split names it
        whole = torch.arange(flow.width)
        return list(whole.chunk(number) if name_of(node) == "chunk" else whole.split(number))


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
            flow = a.flows[source(source(node))]
            a.follow(node, flow.axis, flow.constant[piece])

    def needs(self, node: fx.Node, a: Analysis) -> None:
        piece = self._piece(node, a)
        if piece is None:
            return super().needs(node, a) if source(node) in a.network.shapes else None
        whole = source(source(node))
        a.grow(node, a.flows[whole].needed[piece])
        needed = torch.zeros_like(a.flows[whole].needed)
        needed[piece] = a.flows[node].needed
        a.grow(whole, needed)

    def links(self, node: fx.Node, a: Analysis) -> list[Link]:
        piece = self._piece(node, a)
        if piece is None:
            return super().links(node, a)
        return [(source(source(node)), piece.numpy(), np.arange(len(piece)))]

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
        pieces = rule.pieces(source(node), a) if isinstance(rule, Split) else None
        return None if pieces is None else pieces[node.args[1]]  # pyright: ignore


def _is_computed(index: Any) -> bool:
    """Whether an index is a slice whose ends are found out at run time."""
    ends = (index.start, index.stop, index.step) if isinstance(index, slice) else ()
    return any(isinstance(end, fx.Node) for end in ends)


@handles(calls=["size"], attributes=["shape"])
class Size(Rule):
    """``x.shape`` and ``x.size()``: a number of channels may go into a reshape, else it must not change."""

    def needs(self, node: fx.Node, a: Analysis) -> None:
        flow = a.flows.get(source(node))
        for reader, dims in self._readers(node, a).items():
            for user in reader.users:
                rule, after = a.rules[user], a.flows.get(user)
                asked = isinstance(rule, Reshaped) and after and rule.size(user, after.axis, a) is reader
                if asked and flow and after and dims == {flow.axis} and flow.width == after.width:
                    a.tie(source(node), user)
                    continue
                if asked:
                    a.need_all(user)
                if flow and flow.axis in dims:
                    a.need_all(source(node))

    def _readers(self, node: fx.Node, a: Analysis) -> dict[fx.Node, set[int]]:
        """Who reads which dimensions."""
        rank, readers = len(a.shape(source(node))), {}
        dim = argument(node, 1, "dim") if name_of(node) == "size" else None
        if dim is not None:
            return {node: {dim % rank}}
        for user in node.users:
            index = user.args[1] if user.target is getitem else None
            if isinstance(index, int):
                readers[user] = {index % rank}
            elif isinstance(index, slice) and not _is_computed(index):
                readers[user] = set(range(rank)[index])
            else:
                readers[node] = set(range(rank))
        return readers


def _is_size(number: fx.Node, a: Analysis) -> bool:
    """Whether a number is a size of a value, as it is."""
    return any(isinstance(a.rules[one], Size) for one in (number, source(number)))


@handles(calls=["transpose", "permute", "swapaxes", "movedim", "unsqueeze", "squeeze"])
class Moved(Linked):
    """Transposition, permutation, insertion and removal of dimensions: the channels' axis moves."""

    def axis(self, node: fx.Node, flow: Flow, a: Analysis) -> int | None:
        # Let a tensor whose only size above 1 is that of the axis show where it goes.
        sizes = [2 if d == flow.axis else 1 for d in range(len(a.shape(source(node))))]
        shape = list(call_with(node, torch.empty(sizes)).shape)
        return shape.index(2) if len(shape) == len(a.shape(node)) and 2 in shape else None


@handles(calls=["expand_as"])
class ExpandedAs(Linked):
    """``x.expand_as(other)``: the other only lends its shape, and keeps the same channels."""

    def needs(self, node: fx.Node, a: Analysis) -> None:
        for one in node.all_input_nodes:
            a.tie(one, node)

    def links(self, node: fx.Node, a: Analysis) -> list[Link]:
        return [alike(one, node, a) for one in node.all_input_nodes]


@handles(calls=["dim"], attributes=["device", "dtype", "ndim"])
class Ignored(Leaf):
    """Asks for something that has nothing to do with channels: ``x.device``, ``x.dtype``, ``x.dim()``."""
