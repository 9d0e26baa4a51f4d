"""Rules for operators that treat every channel alike: activations, pooling, padding, arithmetic."""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from fadeout.graph.analysis import Analysis, Flow
from fadeout.graph.editor import Editor
from fadeout.graph.network import Network
from fadeout.graph.rules.base import Link, Linked, Rule, Unknown, alike
from fadeout.graph.rules.calls import argument, call_with, name_of, source, wide_copy, worked_out
from fadeout.graph.rules.registry import MODULES, handles, versions

_ACTIVATIONS = """CELU ELU GELU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid Mish ReLU ReLU6
    SELU SiLU Sigmoid Softplus Softshrink Softsign Tanh Tanhshrink Threshold"""
_FUNCTIONS = """relu relu6 leaky_relu elu selu celu gelu silu mish sigmoid tanh hardswish hardsigmoid hardtanh
    softplus softsign logsigmoid dropout dropout1d dropout2d dropout3d feature_dropout neg abs exp square
    clamp contiguous clone detach float double half bfloat16 to type_as pow"""


@handles(*versions(*_ACTIVATIONS.split(), "Dropout1d", "Dropout2d", "Dropout3d"), calls=_FUNCTIONS.split())
class Elementwise(Linked):
    """Activations, and arithmetic with plain numbers: a constant goes through the function itself."""

    any_order = True

    def axis(self, node: fx.Node, flow: Flow, a: Analysis) -> int | None:
        alone = len(node.all_input_nodes) == 1  # not the power of one value to another
        return super().axis(node, flow, a) if alone else None

    def values(self, node: fx.Node, flow: Flow, a: Analysis) -> Tensor:
        shape = [1] * len(a.shape(node))
        shape[flow.axis] = flow.width
        module = a.module(node)
        if module is not None:  # on a copy: the call must neither see the device nor change a mode
            same = not module.state_dict()  # in every analysis
            twin = partial(wide_copy, module)
            module = a.network.once((id(module), "twin"), twin) if same else twin()
        out = call_with(node, flow.constant.view(shape).clone(), module)
        return torch.where(flow.constant.isnan(), math.nan, out.reshape(-1).double())


@handles(nn.Identity, nn.Dropout)
class Unchanged(Elementwise):
    is_identity = True

    def is_alike(self, module: Any, args: tuple, kwargs: dict) -> bool:
        """A module without parameters that gives what it gets: dropout of any kind."""
        plain = len(args) == 1 and not kwargs and next(module.parameters(), None) is None
        return plain and module(*args) is args[0]


@handles(nn.PReLU)
class PReLU(Elementwise):
    """One slope for all channels, or one for each."""

    def axis(self, node: fx.Node, flow: Flow, a: Analysis) -> int | None:
        fits = flow.axis == 1 or not self.per_channel(a.module(node))
        return super().axis(node, flow, a) if fits else None

    def needs(self, node: fx.Node, a: Analysis) -> None:
        super().needs(node, a)
        if self.per_channel(a.module(node)):
            a.tie_sites(node)

    def cut(self, node: fx.Node, e: Editor) -> None:
        kept = e.kept(node)
        if kept is not None and self.per_channel(e.module(node)):
            e.slice(node, "weight", (kept,))
            e.module(node).num_parameters = len(kept)

    def per_channel(self, module: Any) -> int:
        return int(module.num_parameters > 1)


@handles(
    *versions("MaxPool", "AdaptiveAvgPool", "AdaptiveMaxPool", "Upsample"),
    calls=[
        *(f"{kind}_pool{n}d" for kind in ("max", "adaptive_avg", "adaptive_max") for n in (1, 2, 3)),
        *("interpolate", "upsample"),
    ],
)
class Pooled(Linked):
    """Pooling and resizing after which a constant is the same, of the dimensions behind the channels."""

    any_order = True

    def axis(self, node: fx.Node, flow: Flow, a: Analysis) -> int | None:
        kinds = type(a.module(node)).__mro__
        name = name_of(node) or next(kind.__name__ for kind in kinds if kind in MODULES)
        rank = len(a.shape(source(node)))
        pooled = next((int(letter) for letter in name if letter.isdigit()), rank - 2)  # 2 in MaxPool2d
        return super().axis(node, flow, a) if flow.axis < rank - pooled else None


@handles(*versions("AvgPool", "LPPool"), calls=[f"avg_pool{n}d" for n in (1, 2, 3)])
class ZeroOnly(Pooled):
    """Zero stays zero; whether another constant stays is not looked into."""

    def values(self, node: fx.Node, flow: Flow, a: Analysis) -> Tensor:
        return torch.where(flow.constant == 0, 0.0, math.nan)


_COPYING = versions("ReflectionPad", "ReplicationPad", "CircularPad")


@handles(*versions("ZeroPad", "ConstantPad"), *_COPYING, calls=["pad"])
class Padded(Linked):
    """Padding behind the channels: a constant stays if the padding has its value."""

    any_order = True

    def axis(self, node: fx.Node, flow: Flow, a: Analysis) -> int | None:
        module = a.module(node)
        sizes = argument(node, 1, "pad") if module is None else module.padding
        first = 2 * (len(a.shape(node)) - 1 - flow.axis)
        among = not isinstance(sizes, list | tuple) or any(sizes[first : first + 2])
        return None if among else super().axis(node, flow, a)

    def values(self, node: fx.Node, flow: Flow, a: Analysis) -> Tensor:
        module = a.module(node)
        if module is not None:
            copies, value = isinstance(module, tuple(_COPYING)), getattr(module, "value", 0.0)
        else:
            copies = argument(node, 2, "mode", "constant") != "constant"
            value = argument(node, 3, "value") or 0.0
        return flow.constant if copies else torch.where(flow.constant == value, float(value), math.nan)


@handles(calls=["mean", "amax", "amin", "sum"])
class Reduced(Linked):
    """A mean, maximum or sum over dimensions other than that of the channels."""

    any_order = mixes = True

    def axis(self, node: fx.Node, flow: Flow, a: Analysis) -> int | None:
        dims = argument(node, 1, "dim")
        if dims is None:
            return None
        rank = len(a.shape(source(node)))
        gone = {d % rank for d in ([dims] if isinstance(dims, int) else dims)}
        if flow.axis in gone:
            return None
        keeps_rank = len(a.shape(node)) == rank
        return flow.axis if keeps_rank else flow.axis - sum(d < flow.axis for d in gone)

    def values(self, node: fx.Node, flow: Flow, a: Analysis) -> Tensor:
        return torch.where(flow.constant == 0, 0.0, math.nan) if name_of(node) == "sum" else flow.constant


class Multiple(Rule):
    """A size times a number, or times another size: its readers are looked at by :class:`.shapes.Size`."""

    def factor(self, node: fx.Node, size: fx.Node, a: Analysis) -> int:
        """How many times a size it is."""
        return math.prod(worked_out(one, a.network.shapes) for one in node.args if one is not size)

    def needs(self, node: fx.Node, a: Analysis) -> None:
        pass


_OPERATIONS = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "truediv": torch.div}


@handles(calls=[*_OPERATIONS, *(f"i{name}" for name in _OPERATIONS if name != "div")])
class Arithmetic(Rule):
    """Addition, subtraction, multiplication and division of two values.

    Where a side has a constant for a channel, nobody needs to compute that channel there: the result gathers
    its channels from the side, with the constants in between, so that the sides of an addition need not keep
    the same channels. With ``couple`` they do.
    """

    joins = any_order = True

    def at(self, node: fx.Node, network: Network) -> Rule:
        if "mul" in name_of(node) and not any(one in network.shapes for one in node.all_input_nodes):
            sizes = [one for one in node.args if isinstance(one, fx.Node)]
            plain = all(one.target == "size" or isinstance(network.rules[one], Multiple) for one in sizes)
            return Multiple() if plain and len({*sizes}) == len(sizes) else Unknown()  # no squares
        with_a_number = len(node.all_input_nodes) == 1 and len(node.args) == 2
        return Elementwise() if with_a_number else self

    def constants(self, node: fx.Node, a: Analysis) -> None:
        sides = self._sides(node, a)
        if sides is None:
            return
        flows, width = dict(sides), sides[0][1].width
        known = [
            flows[one].constant if one in flows else torch.full((width,), _scalar(one, a)).double()
            for one in self._operands(node)
        ]
        constant = _OPERATIONS[name_of(node).strip("_").removeprefix("i")](*known)
        constant = torch.where(constant.isfinite(), constant, math.nan)
        if "mul" in name_of(node):
            zero = torch.stack([values == 0 for values in known]).any(0)
            constant = torch.where(zero, 0.0, constant)
        if "div" in name_of(node) and _is_positive(self._operands(node)[1], a):
            constant = torch.where(known[0] == 0, 0.0, constant)
        a.follow(node, self._axis(node, *sides[0], a), constant)

    def needs(self, node: fx.Node, a: Analysis) -> None:
        sides, flow = self._sides(node, a), a.flows.get(node)
        if sides is None or flow is None:
            return super().needs(node, a)
        for one in self._tensors(node, a):
            if all(one is not side for side, _ in sides):
                a.need_all(one)
        for side, side_flow in sides:
            fills_in = a.rules[side].fills_in and len(side.users) == 1
            if a.couple or len(sides) == 1 or fills_in:
                a.tie(side, node)
            else:
                a.grow(side, flow.needed & side_flow.constant.isnan())

    def cut(self, node: fx.Node, e: Editor) -> None:
        sides = self._sides(node, e.analysis)
        if sides is not None and node in e.analysis.flows:
            for side, _ in sides:
                e.gather(side, node)

    def links(self, node: fx.Node, a: Analysis) -> list[Link]:
        return [alike(side, node, a) for side, _ in self._sides(node, a) or []]

    def _operands(self, node: fx.Node) -> list:
        return [argument(node, 0, "input"), argument(node, 1, "other")]

    def _tensors(self, node: fx.Node, a: Analysis) -> list[fx.Node]:
        return [one for one in self._operands(node) if isinstance(one, fx.Node) and one in a.network.shapes]

    def _axis(self, node: fx.Node, side: fx.Node, flow: Flow, a: Analysis) -> int:
        """Where the channels of a side lie in the result: a side may have fewer dimensions."""
        return flow.axis + len(a.shape(node)) - len(a.shape(side))

    def _sides(self, node: fx.Node, a: Analysis) -> list[tuple[fx.Node, Flow]] | None:
        """The operands that have the result's channels; None where these cannot be followed.

        Other operands may be numbers, or tensors that are spread over all channels.
        """
        if node not in a.network.shapes or "alpha" in node.kwargs or "rounding_mode" in node.kwargs:
            return None
        tensors, shape = self._tensors(node, a), a.shape(node)
        followed = [(one, a.flows[one]) for one in tensors if one in a.flows]
        axes = {(self._axis(node, one, flow, a), flow.width) for one, flow in followed}
        full = {(axis, width) for axis, width in axes if shape[axis] == width > 1}
        if len(full) != 1:
            return None
        axis, width = full.pop()
        sides = [(one, f) for one, f in followed if (self._axis(node, one, f, a), f.width) == (axis, width)]
        for one in tensors:
            own = axis - (len(shape) - len(a.shape(one)))
            spread = own < 0 or a.shape(one)[own] == 1
            if not spread and all(one is not side for side, _ in sides):
                return None
        return sides


def _is_positive(operand: Any, a: Analysis) -> bool:
    """Whether an operand is a size, or made of sizes: above zero, and another number for other inputs."""
    return isinstance(operand, fx.Node) and operand not in a.network.shapes


def _scalar(operand: Any, a: Analysis) -> float:
    """The value of a parameter that is a single number, which all channels share; NaN for all else.

    Where it is not its value that counts, for it may still be trained, one that nothing else is equal to.
    """
    if not isinstance(operand, fx.Node) or operand.op != "get_attr" or a.shape(operand).numel() != 1:
        return math.nan
    owner, _, name = str(operand.target).rpartition(".")
    parameter = getattr(a.network.modules.get(owner), name, None)
    if not isinstance(parameter, nn.Parameter):
        return math.nan
    return 1 / math.pi if a.dead is not None else float(parameter.detach())


@handles(calls=["where"])
class Where(Arithmetic):
    """``torch.where(condition, x, y)``: constant where both are the same; both keep the same channels."""

    joins = any_order = False

    def at(self, node: fx.Node, network: Network) -> Rule:
        return self if len(node.args) == 3 else Unknown()

    def constants(self, node: fx.Node, a: Analysis) -> None:
        sides = self._sides(node, a)
        if sides is None:
            return
        flow, known = sides[0][1], []
        for one in self._operands(node)[1:]:
            value = math.nan if isinstance(one, fx.Node) else float(one)
            own = a.flows.get(one) if isinstance(one, fx.Node) else None
            known.append(torch.full_like(flow.constant, value) if own is None else own.constant)
        constant = torch.where(known[0] == known[1], known[0], math.nan)
        a.follow(node, self._axis(node, *sides[0], a), constant)

    def needs(self, node: fx.Node, a: Analysis) -> None:
        Rule.needs(self, node, a)

    def cut(self, node: fx.Node, e: Editor) -> None:
        pass

    def _operands(self, node: fx.Node) -> list:
        first, second, third = node.args
        return [second, first, third] if node.op == "call_method" else [first, second, third]


@handles(calls=["masked_fill"])
class Filled(Linked):
    """Some numbers are replaced: a channel stays constant only if they are its own."""

    def values(self, node: fx.Node, flow: Flow, a: Analysis) -> Tensor:
        value = argument(node, 2, "value")
        value = float(value) if isinstance(value, int | float) else math.nan
        return torch.where(flow.constant == value, value, math.nan)


@handles(nn.Softmax, calls=["softmax"])
class Softmax(Linked):
    """Along another dimension than that of the channels."""

    mixes = True

    def values(self, node: fx.Node, flow: Flow, a: Analysis) -> Tensor:
        return torch.full_like(flow.constant, math.nan)

    def axis(self, node: fx.Node, flow: Flow, a: Analysis) -> int | None:
        module = a.module(node)
        dim = argument(node, 1, "dim") if module is None else module.dim
        beside = isinstance(dim, int) and dim % len(a.shape(node)) != flow.axis
        return super().axis(node, flow, a) if beside else None
