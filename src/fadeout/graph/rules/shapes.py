"""Rules for operators that change shapes: reshaping, transposition, expansion, pixel shuffles, sizes."""

import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import fx, nn

from fadeout.graph.analysis import Analysis, Flow
from fadeout.graph.editor import Editor
from fadeout.graph.rules.base import Link, Linked, Rule, alike
from fadeout.graph.rules.calls import argument, call_with, name_of, source, worked_out
from fadeout.graph.rules.pointwise import Arithmetic, Multiple
from fadeout.graph.rules.registry import handles, versions
from fadeout.graph.sizes import attribute_of


class Regrouping(NamedTuple):
    """How channels are regrouped: each input becomes ``spread`` outputs, or ``gathered`` inputs one output.

    Where the inputs are several rows of all outputs one after the other, as queries, keys and values of one
    projection are, ``rows`` is how many.
    """

    axis: int
    spread: int = 1
    gathered: int = 1
    rows: int = 1


class Regrouped(Rule, ABC):
    """Each channel of one side stands for several of the other, next to each other.

    Flattening spreads a channel over its positions; splitting features into heads, and pixel shuffle, gather
    several into one.
    """

    stands_beside = True

    @abstractmethod
    def regrouping(self, node: fx.Node, flow: Flow, a: Analysis) -> Regrouping | None:
        """The output's axis, and how its channels come from the input's."""

    def constants(self, node: fx.Node, a: Analysis) -> None:
        found = self._found(node, a)
        if found is not None:
            flow, how = found
            values = flow.constant.repeat_interleave(how.spread).view(how.rows, -1, how.gathered)
            values = values.transpose(0, 1).flatten(1)
            a.follow(node, how.axis, torch.where((values == values[:, :1]).all(1), values[:, 0], math.nan))

    def links(self, node: fx.Node, a: Analysis) -> list[Link]:
        found = self._found(node, a)
        if found is None:
            return []
        flow, how = found
        numbers = np.arange(flow.width * how.spread)
        outputs = numbers // how.gathered % (len(numbers) // how.gathered // how.rows)
        return [(source(node), numbers // how.spread, outputs)]

    def _found(self, node: fx.Node, a: Analysis) -> tuple[Flow, Regrouping] | None:
        """The flow of the input, and how it is regrouped."""
        flow = a.flows.get(source(node))
        found = None if flow is None or node not in a.network.shapes else self.regrouping(node, flow, a)
        return None if flow is None or found is None else (flow, found)


@handles(*versions("PixelShuffle", "PixelUnshuffle"), calls=["pixel_shuffle", "pixel_unshuffle"])
class Shuffled(Regrouped):
    """Pixel shuffle and its inverse."""

    def regrouping(self, node: fx.Node, flow: Flow, a: Analysis) -> Regrouping | None:
        after = a.shape(node)[flow.axis]
        if flow.axis != len(a.shape(node)) - 3:
            return None
        return Regrouping(flow.axis, max(after // flow.width, 1), max(flow.width // after, 1))


@handles(nn.Flatten, nn.Unflatten, calls=["flatten", "reshape", "view", "unflatten"])
class Reshaped(Regrouped):
    """``reshape``, ``view``, ``flatten``, ``unflatten`` where they leave the order of channels."""

    def regrouping(self, node: fx.Node, flow: Flow, a: Analysis) -> Regrouping | None:
        old, new = a.shape(source(node)), a.shape(node)
        ahead, behind = math.prod(old[: flow.axis]), math.prod(old[flow.axis + 1 :])
        for axis, size in enumerate(new):
            if math.prod(new[:axis]) != ahead or size == 1 != flow.width:
                continue
            after = math.prod(new[axis + 1 :])
            divides = size % flow.width == 0 or flow.width % size == 0
            if not divides or size * after != flow.width * behind:
                continue
            found = Regrouping(axis, max(size // flow.width, 1), max(flow.width // size, 1))
            heads = math.prod(new[axis : axis + 2])
            if size in (2, 3) and axis + 2 < len(new) and flow.width % heads == 0:
                found = Regrouping(axis + 1, 1, flow.width // heads, size)  # those of keys and values
            return found if self._can_change(node, found.axis, a) else None
        return None

    def _can_change(self, node: fx.Node, axis: int, a: Analysis) -> bool:
        """Whether what is given as the size of this dimension can be another."""
        number = self.size(node, axis, a)
        if not isinstance(number, int) or (self._sizes(node, a) and not a.keep_forward):
            return True
        return bool(self._sizes(node, a)) and attribute_of(number) is not None

    def needs(self, node: fx.Node, a: Analysis) -> None:
        number = self.size(node, a.flows[node].axis, a) if node in a.flows else None
        if isinstance(number, fx.Node) and a.keep_forward and not _is_size(number, a):  # else Size sees to it
            a.need_all(node)
        super().needs(node, a)

    def cut(self, node: fx.Node, e: Editor) -> None:
        kept, a = e.kept(node), e.analysis
        number = None if kept is None else self.size(node, a.flows[node].axis, a)
        if kept is not None and (isinstance(number, int) or _differs(number, node, a)):
            sizes = self._sizes(node, a)
            sizes[a.flows[node].axis] = len(kept)
            whole = isinstance(argument(node, 1, "shape"), list | tuple)
            args = (node.args[0], tuple(sizes)) if whole else (node.args[0], *sizes)
            e.call(node, node.target, args, attribute_of(number), len(kept))

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
        if name_of(node) not in ("reshape", "view", "expand"):
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


@handles(calls=["reshape_as", "view_as"])
class ReshapedAs(Reshaped):
    """``x.reshape_as(other)``: the other only lends its shape, and keeps as many channels."""

    def needs(self, node: fx.Node, a: Analysis) -> None:
        Regrouped.needs(self, node, a)
        if not self._lends(node, a):
            a.need_all(node)

    def links(self, node: fx.Node, a: Analysis) -> list[Link]:
        lent = [alike(node.all_input_nodes[-1], node, a)] if self._lends(node, a) else []
        return [*super().links(node, a), *lent]

    def _lends(self, node: fx.Node, a: Analysis) -> bool:
        """Whether the channels of the other lie where they lie in the output."""
        flow, after = a.flows.get(node.all_input_nodes[-1]), a.flows.get(node)
        return flow is not None and after is not None and flow.axis == after.axis


@handles(calls=["size"])
class Size(Rule):
    """``x.size(dim)``, as which all sizes are noted: it may go into a reshape, else it must not change.

    Where the forward can be rewritten, a reshape is given the number of channels itself.
    """

    def needs(self, node: fx.Node, a: Analysis) -> None:
        flow = self.counted(node, a)
        if flow is None:
            for user, _ in self._uses(node, a) if a.keep_forward else []:
                if not (isinstance(a.rules[user], Arithmetic) or self._counts_channels(user, a)):
                    a.need_all(user)
            return
        for user, factor in self._uses(node, a):
            after = a.flows.get(user)
            if self._computes(user, factor, flow, a):
                a.need_all(source(node))
                if a.keep_forward:
                    a.need_all(user)
            elif a.keep_forward and after is not None:
                a.grow(user, flow.needed.repeat_interleave(factor))
                a.grow(source(node), after.needed.view(-1, factor).any(1))

    def computed_with(self, node: fx.Node, a: Analysis) -> list[fx.Node]:
        """Who does something else with the number of channels than make as many of them."""
        flow = self.counted(node, a)
        uses = [] if flow is None else self._uses(node, a)
        return [user for user, factor in uses if flow is not None and self._computes(user, factor, flow, a)]

    def counted(self, node: fx.Node, a: Analysis) -> Flow | None:
        """Whose channels the size is the number of; None where it is that of another dimension."""
        flow = a.flows.get(source(node))
        dim = int(argument(node, 1, "dim")) % len(a.shape(source(node)))
        return flow if flow is not None and flow.axis == dim else None

    def _counts_channels(self, user: fx.Node, a: Analysis) -> bool:
        """Whether a reshape is given a multiple of a number of channels, beside this size."""
        rule, after = a.rules[user], a.flows.get(user)
        waiting: list[Any] = [rule.size(user, after.axis, a)] if after and isinstance(rule, Reshaped) else []
        while waiting:
            one = waiting.pop()
            rule = a.rules[one] if isinstance(one, fx.Node) else None
            if isinstance(rule, Size) and self.counted(one, a) is not None:
                return True
            waiting += one.args if isinstance(rule, Multiple) else []
        return False

    def _computes(self, user: fx.Node, factor: int, flow: Flow, a: Analysis) -> bool:
        after = a.flows.get(user)
        return after is None or isinstance(a.rules[user], Arithmetic) or after.width != flow.width * factor

    def _uses(self, node: fx.Node, a: Analysis) -> list[tuple[fx.Node, int]]:
        """Who makes channels of the number, and how often as many."""
        found = []
        for user in node.users:
            rule, after = a.rules[user], a.flows.get(user)
            if isinstance(rule, Multiple):
                factor = rule.factor(user, node, a)
                found += [(reader, factor * more) for reader, more in self._uses(user, a)]
            elif not isinstance(rule, Reshaped) or (after and rule.size(user, after.axis, a) is node):
                found.append((user, 1))
        return found


def _is_size(number: fx.Node, a: Analysis) -> bool:
    """Whether a number is a size of a value, or some times as many."""
    return any(isinstance(a.rules[one], Size | Multiple) for one in (number, source(number)))


def _differs(number: Any, node: fx.Node, a: Analysis) -> bool:
    """Whether a number of channels that is asked for is not that of what is left."""
    return isinstance(number, fx.Node) and _left(number, a) != int(a.flows[node].needed.sum())


def _left(number: Any, a: Analysis) -> int | None:
    """What a number becomes when channels go that it counts; None where it is more than a multiple."""
    if not isinstance(number, fx.Node):
        return int(number)
    if isinstance(a.rules[number], Multiple):
        parts = [_left(one, a) for one in number.args]
        return None if None in parts else math.prod(parts)  # pyright: ignore
    rule = a.rules[number]
    if not isinstance(rule, Size):
        return None
    flow = rule.counted(number, a)
    return worked_out(number, a.network.shapes) if flow is None else int(flow.needed.sum())


@handles(calls=["expand"])
class Expanded(Reshaped):
    """``x.expand(sizes)`` along other dimensions than that of the channels."""

    def regrouping(self, node: fx.Node, flow: Flow, a: Analysis) -> Regrouping | None:
        axis = flow.axis + len(a.shape(node)) - len(a.shape(source(node)))
        fits = a.shape(node)[axis] == flow.width and self._can_change(node, axis, a)
        return Regrouping(axis) if fits else None


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

    def links(self, node: fx.Node, a: Analysis) -> list[Link]:
        return [alike(one, node, a) for one in node.all_input_nodes]
