"""Rules for operators that treat every channel alike: activations, pooling, padding, arithmetic."""

import copy
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx, nn

from fadeout.graph.rules.base import (
    Link,
    Linked,
    Rule,
    alike,
    argument,
    call_with,
    module_of,
    name_of,
    source,
)
from fadeout.graph.rules.gathers import fills_in

if TYPE_CHECKING:
    from fadeout.compaction.cut import Surgery
    from fadeout.graph.analysis import Analysis, Flow, Network


class Elementwise(Linked):
    """Activations, and arithmetic with plain numbers: a constant goes through the function itself."""

    def axis(self, node: fx.Node, flow: "Flow", a: "Analysis") -> int | None:
        alone = len(node.all_input_nodes) == 1  # not the power of one value to another
        return super().axis(node, flow, a) if alone else None

    def values(self, node: fx.Node, flow: "Flow", a: "Analysis") -> Tensor:
        shape = [1] * len(a.shape(node))
        shape[flow.axis] = flow.width
        module = module_of(node, a.network)
        if module is not None:  # on a copy: the call must neither see the device nor change a mode
            module = copy.deepcopy(module).cpu().double().eval()
        out = call_with(node, flow.constant.view(shape).clone(), module)
        return torch.where(flow.constant.isnan(), math.nan, out.reshape(-1).double())


class PReLU(Elementwise):
    """One slope for all channels, or one for each."""

    def axis(self, node: fx.Node, flow: "Flow", a: "Analysis") -> int | None:
        return super().axis(node, flow, a) if flow.axis == 1 or not self._has_many(node, a.network) else None

    def needs(self, node: fx.Node, a: "Analysis") -> None:
        super().needs(node, a)
        if self._has_many(node, a.network):
            for site in a.network.sites(node):
                a.tie(site, node)

    def cut(self, node: fx.Node, s: "Surgery") -> None:
        kept = s.kept(node)
        if kept is not None and self._has_many(node, s.analysis.network):
            s.slice(node, "weight", (kept,))
            s.module(node).num_parameters = len(kept)

    def _has_many(self, node: fx.Node, network: "Network") -> bool:
        return network.module(node).num_parameters > 1  # pyright: ignore


class ZeroOnly(Linked):
    """Zero stays zero; whether another constant stays is not looked into."""

    def values(self, node: fx.Node, flow: "Flow", a: "Analysis") -> Tensor:
        return torch.where(flow.constant == 0, 0.0, math.nan)


class Padded(Linked):
    """Padding behind the channels: a constant stays if the padding has its value."""

    def axis(self, node: fx.Node, flow: "Flow", a: "Analysis") -> int | None:
        module = module_of(node, a.network)
        sizes = argument(node, 1, "pad") if module is None else module.padding
        place = 2 * (len(a.shape(node)) - 1 - flow.axis)
        among = not isinstance(sizes, list | tuple) or any(sizes[place : place + 2])
        return None if among else super().axis(node, flow, a)

    def values(self, node: fx.Node, flow: "Flow", a: "Analysis") -> Tensor:
        module = module_of(node, a.network)
        if module is not None:
            copies = isinstance(module, _COPYING)
            value = getattr(module, "value", 0.0)
        else:
            copies = argument(node, 2, "mode", "constant") != "constant"
            value = argument(node, 3, "value") or 0.0
        return flow.constant if copies else torch.where(flow.constant == value, float(value), math.nan)


_COPYING = tuple(
    getattr(nn, f"{kind}Pad{n}d") for kind in ("Reflection", "Replication", "Circular") for n in (1, 2, 3)
)


class Reduced(Linked):
    """A mean, maximum or sum over dimensions other than that of the channels."""

    def axis(self, node: fx.Node, flow: "Flow", a: "Analysis") -> int | None:
        dims = argument(node, 1, "dim")
        if dims is None:
            return None
        rank = len(a.shape(source(node)))
        gone = {d % rank for d in ([dims] if isinstance(dims, int) else dims)}
        if flow.axis in gone:
            return None
        keeps_rank = len(a.shape(node)) == rank
        return flow.axis if keeps_rank else flow.axis - sum(d < flow.axis for d in gone)

    def values(self, node: fx.Node, flow: "Flow", a: "Analysis") -> Tensor:
        return torch.where(flow.constant == 0, 0.0, math.nan) if name_of(node) == "sum" else flow.constant


class Arithmetic(Rule):
    """Addition, subtraction, multiplication and division of two values.

    Where a side has a constant for a channel, nobody needs to compute that channel there: the side is placed
    by index into the channels of the result, with the constants in between, so that the sides of an addition
    need not keep the same channels. With ``couple`` they do.
    """

    takes_constants = True

    def constants(self, node: fx.Node, a: "Analysis") -> None:
        sides = self._sides(node, a)
        if sides is None:
            return
        axis, flows = sides[0][1].axis + self._offset(node, sides[0][0], a), [flow for _, flow in sides]
        known = [flow.constant for flow in flows]
        if len(known) == len(self._operands(node)):
            constant = self._compute(node, known)
        else:
            constant = torch.full_like(known[0], math.nan)
        if "mul" in name_of(node):
            zero = torch.stack([values == 0 for values in known]).any(0)
            constant = torch.where(zero, 0.0, constant)
        a.follow(node, axis, constant)

    def needs(self, node: fx.Node, a: "Analysis") -> None:
        sides, flow = self._sides(node, a), a.flows.get(node)
        if sides is None or flow is None:
            return super().needs(node, a)
        for one in self._tensors(node, a):
            if all(one is not side for side, _ in sides):
                a.need_all(one)
        for side, side_flow in sides:
            if a.couple or len(sides) == 1 or fills_in(side, a):
                a.tie(side, node)
            else:
                a.grow(side, flow.needed & side_flow.constant.isnan())
        return None

    def cut(self, node: fx.Node, s: "Surgery") -> None:
        sides = self._sides(node, s.analysis)
        if sides is not None and node in s.analysis.flows:
            for side, _ in sides:
                s.place(side, node)

    def links(self, node: fx.Node, a: "Analysis") -> list[Link]:
        return [alike(side, node, a) for side, _ in self._sides(node, a) or []]

    def _operands(self, node: fx.Node) -> list:
        return [argument(node, 0, "input"), argument(node, 1, "other")]

    def _tensors(self, node: fx.Node, a: "Analysis") -> list[fx.Node]:
        return [one for one in self._operands(node) if isinstance(one, fx.Node) and one in a.network.shapes]

    def _offset(self, node: fx.Node, side: fx.Node, a: "Analysis") -> int:
        return len(a.shape(node)) - len(a.shape(side))

    def _sides(self, node: fx.Node, a: "Analysis") -> "list[tuple[fx.Node, Flow]] | None":
        """The operands that have the result's channels; None where these cannot be followed.

        Other operands may be numbers, or tensors that are spread over all channels.
        """
        if node not in a.network.shapes or "alpha" in node.kwargs or "rounding_mode" in node.kwargs:
            return None
        tensors = self._tensors(node, a)
        followed = [(one, a.flows[one]) for one in tensors if one in a.flows]
        places = {(flow.axis + self._offset(node, one, a), flow.width) for one, flow in followed}
        full = {place for place in places if a.shape(node)[place[0]] == place[1] and place[1] > 1}
        if len(full) != 1:
            return None
        axis, width = full.pop()
        sides = [
            (one, f) for one, f in followed if (f.axis + self._offset(node, one, a), f.width) == (axis, width)
        ]
        for one in tensors:
            own = axis - self._offset(node, one, a)
            spread = own < 0 or a.shape(one)[own] == 1
            if not spread and all(one is not side for side, _ in sides):
                return None
        return sides

    def _compute(self, node: fx.Node, values: list[Tensor]) -> Tensor:
        name = name_of(node).strip("_")
        name = name[1:] if name.startswith("i") else name
        function = {
            "truediv": torch.div,
            "div": torch.div,
            "add": torch.add,
            "sub": torch.sub,
            "mul": torch.mul,
        }
        out = function[name](*values)
        return torch.where(out.isfinite(), out, math.nan)
