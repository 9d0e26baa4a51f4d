"""A network's forward becomes a graph of calls, while it runs on an example.

The network runs for real, on real values. Every call of a function in torch, of a method of a tensor and of
a module that is not looked into is noted. So whatever the forward asks, shapes, dtypes, flags, whether an
argument is None, the example answers, and the graph has the way that the example took.
"""

import dataclasses
import gc
import inspect
import math
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from fadeout.graph.example import Example, Field, items_of, tensors_in
from fadeout.graph.side_effects import keep, kept_on
from fadeout.graph.sizes import Asked, Attribute, Computed, Size, is_asked
from fadeout.torch_bridge.modes import in_mode
from fadeout.torch_bridge.parameters import clean, unwrap


class Recording(TorchFunctionMode):
    """Notes the calls of a forward, as they are made.

    Args:
        model: the network.
        is_leaf: whether a module is noted as one call, given its arguments.
    """

    def __init__(self, model: nn.Module, is_leaf: Callable[[nn.Module, tuple, dict], bool]):
        super().__init__()
        self.model, self.is_leaf = model, is_leaf
        self.graph, self.shapes = fx.Graph(), dict[fx.Node, torch.Size]()
        self.constants: dict[str, Tensor] = {}
        """Tensors that are neither parameters nor buffers, by the names they have in the graph."""
        self.rebuilds = True
        """Whether all that the forward returns, or keeps, can be made again by a graph."""
        self.path: list[str] = []
        """The modules that are being run."""
        self._modules = {id(module): name for name, module in reversed(list(model.named_modules()))}
        self._stored = {id(t): n for n, t in (*model.named_buffers(), *model.named_parameters())}
        self._nodes: dict[int, fx.Node | tuple[fx.Node, Any]] = {}  # of a tensor; or of what it is an item of
        self._sizes: dict[Any, fx.Node] = {}
        self._alive: list[Tensor] = []  # so that no id is used twice
        self._learned: set[fx.Node] = set()  # what depends on parameters, or on numbers such as images have
        self._paused = False

    @torch.no_grad()
    def run(self, example: Example) -> None:
        """Run the network on an example."""
        args, kwargs = example.fresh()
        for name, value in Example(args, kwargs).named(self.model.forward).items():
            node = self.graph.placeholder(name)
            if isinstance(value, Tensor) and value.is_floating_point():
                self._learned.add(node)
            self._track(node, value)
        call = nn.Module.__call__
        recording, thread = self, threading.get_ident()  # others go on meanwhile, unrecorded

        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return call(module, *args, **kwargs)
            return recording._call_module(call, module, args, kwargs)

        real_len = len

        def length(value: Any) -> int:  # what a method of the tensor gives would become a plain number
            if not isinstance(value, Tensor) or threading.get_ident() != thread:
                return real_len(value)
            noted = not recording._paused and value.dim()
            return recording._shape(value)[0] if noted else real_len(value)

        patches = mock.patch.object(nn.Module, "__call__", called), mock.patch("builtins.len", length)
        with patches[0], patches[1], _marked(self.model), _all_young(), self:
            result = self.model(*args, **kwargs)
        self._keep()
        self.graph.output(self._result(result))
        self._erase_unread()

    # What is called

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._paused:
            return func(*args, **kwargs)
        name = func.__name__
        versions = [(one, one._version) for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
        if name in _DECIDING:
            self._refuse_learned(args)
        result = func(*args, **kwargs)
        if name == "__get__":
            name = func.__self__.__name__
            if name == "shape":
                return self._shape(args[0])
            func, args = getattr, (args[0], name)
        elif name == "size" and args:
            shape = self._shape(args[0])
            dim = args[1] if len(args) > 1 else kwargs.get("dim")
            return shape if dim is None else shape[dim]
        elif name in ("numel", "nelement"):
            return math.prod(self._shape(args[0]))
        if name == "__setitem__":
            self._note("call_function", operator.setitem, args, {}, None)
            return result
        if not tensors_in(result):
            return result
        if any(result is one and one._version == version for one, version in versions):
            result = result.view_as(result)  # another value in the graph, though the same tensor
        op, target, args = _target(func, args, kwargs)
        self._note(op, target, args, kwargs, result)
        return result

    def _call_module(self, call: Callable, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self._paused or id(module) not in self._modules:
            return call(module, *args, **kwargs)
        self.path.append(self._modules[id(module)])
        with self._pause():
            is_leaf = module is not self.model and self.is_leaf(module, args, kwargs)
        inner = unwrap(module)  # a part may be compiled by itself
        if not is_leaf:
            result = (partial(call, module) if inner is module else inner)(*args, **kwargs)
            self.path.pop()
            return result
        versions = [(one, one._version) for one in args if isinstance(one, Tensor)]
        with self._pause(), in_mode(module, training=False):  # so that nothing is learned
            result = call(inner, *args, **kwargs)
            if any(result is one and one._version == version for one, version in versions):
                result = result.view_as(result)
        self._note("call_module", self._modules[id(module)], args, kwargs, result)
        self.path.pop()
        return result

    @contextmanager
    def _pause(self) -> Iterator[None]:
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    # How it is noted

    def _note(self, op: str, target: Any, args: Any, kwargs: Any, result: Any) -> None:
        own = clean(self.model, target) if op == "call_module" else target  # plans know it by this name
        node = self.graph.create_node(op, own, self._argument(tuple(args)), self._argument(kwargs))
        node.target = target
        node.meta["line"] = _line()
        has_parameters = op == "call_module" and any(True for _ in self._module(target).parameters())
        if has_parameters or any(one in self._learned for one in node.all_input_nodes):
            self._learned.add(node)
        self._track(node, result)

    def _module(self, name: str) -> nn.Module:
        return self.model.get_submodule(name)

    def _track(self, node: fx.Node, value: Any) -> None:
        """A value comes out of a node."""
        if isinstance(value, Tensor):
            self._nodes[id(value)] = node
            self._alive.append(value)
            self.shapes[node] = torch.Size(map(int, value.shape))
            return
        for key, item in items_of(value):
            if isinstance(item, Tensor):
                self._nodes[id(item)] = (node, key)  # its node is made when it is read
                self._alive.append(item)
            elif tensors_in(item):
                self._track(self._item(node, key), item)

    def _item(self, node: fx.Node, key: Any) -> fx.Node:
        item = self.graph.call_function(getattr if isinstance(key, Field) else operator.getitem, (node, key))
        if node in self._learned:
            self._learned.add(item)
        return item

    def _node(self, tensor: Tensor) -> fx.Node:
        """The node that a tensor came out of."""
        found = self._nodes.get(id(tensor))
        if isinstance(found, tuple):
            found = self._item(*found)
            self._track(found, tensor)
        if found is None:
            found = self._constant(tensor)
        return found

    def _constant(self, tensor: Tensor) -> fx.Node:
        name = self._stored.get(id(tensor))
        if name is None:
            if any(tensor is one for one in gc.get_objects(generation=0)):  # made since the start
                raise UnfollowedError("a tensor is made where torch's functions are not called from Python")
            name = f"_tensor_constant{len(self.constants)}"
            self.constants[name] = tensor
        node = (
            self.graph.get_attr(name)
            if name in self._stored.values()
            else self.graph.create_node("get_attr", name)
        )
        if tensor.requires_grad:
            self._learned.add(node)
        self._track(node, tensor)
        return node

    def _shape(self, tensor: Tensor) -> torch.Size:
        with self._pause():
            sizes = tensor.shape
        if id(tensor) not in self._nodes:
            return sizes
        return torch.Size([Size(size, Asked(self._node(tensor), dim)) for dim, size in enumerate(sizes)])

    def _argument(self, value: Any) -> Any:
        """An argument as the graph has it."""
        if isinstance(value, Tensor):
            return self._node(value)
        if isinstance(value, Size):
            return self._size(value) if is_asked(value) else value
        if isinstance(value, slice):
            return slice(*map(self._argument, (value.start, value.stop, value.step)))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self._argument, value))
        if isinstance(value, list | tuple):
            kind = list if isinstance(value, list) else tuple
            return kind(map(self._argument, value))
        if isinstance(value, Mapping) and type(value) is dict:
            return {key: self._argument(one) for key, one in value.items()}
        if isinstance(value, np.generic):  # which the code of a graph cannot name
            return value.item()
        if value is None or isinstance(value, _PLAIN):
            return value
        raise UnfollowedError(f"an argument is a {type(value).__module__}.{type(value).__qualname__}")

    def _size(self, number: Size) -> fx.Node:
        origin = number.origin
        if origin not in self._sizes:
            if isinstance(origin, Asked):
                node = self.graph.call_method("size", (origin.node, origin.dim))
            else:
                assert isinstance(origin, Computed)
                node = self.graph.call_function(origin.operation, self._argument(origin.operands))
                node.meta["line"] = _line()
            self._sizes[origin] = node
        return self._sizes[origin]

    def _result(self, value: Any) -> Any:
        """What the forward returns, as the graph has it."""
        if (isinstance(value, dict) and type(value) is not dict) or dataclasses.is_dataclass(value):
            fields = {key: self._result(one) for key, one in items_of(value) if one is not None}
            if not _is_made_of(value, fields):
                self.rebuilds = False
                return fields
            return self.graph.call_function(type(value), (), fields)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self.graph.call_function(type(value), tuple(map(self._result, value)))
        if isinstance(value, list | tuple):
            return (list if isinstance(value, list) else tuple)(map(self._result, value))
        if isinstance(value, dict):
            return {key: self._result(one) for key, one in value.items()}
        try:
            return self._argument(value)
        except UnfollowedError:
            self.rebuilds = False
            return None

    def _keep(self) -> None:
        """Note what modules have of the forward now; no graph can stand in for the line that keeps it.

        What depends on parameters alone, as biases of positions that are looked up once, is a cache.
        """
        recorded = self._nodes.keys() - self._stored.keys()
        kept = [
            (self._node(tensor), where) for where, tensor in kept_on(self.model) if id(tensor) in recorded
        ]
        of_inputs = set[fx.Node]()
        for node in self.graph.nodes:
            if node.op == "placeholder" or not of_inputs.isdisjoint(node.all_input_nodes):
                of_inputs.add(node)
        for node, where in kept:
            if node is not None and node in of_inputs & self._learned and node.op != "placeholder":
                self.graph.call_function(keep, (node, where))
                self.rebuilds = False

    def _erase_unread(self) -> None:
        for node in reversed(self.graph.nodes):
            if not node.users and (node.target is operator.getitem or node.op == "get_attr"):
                self.shapes.pop(node, None)
                self.graph.erase_node(node)

    def _refuse_learned(self, args: Any) -> None:
        tensors = [one for one in args if isinstance(one, Tensor)]
        if any(self._node(one) in self._learned for one in tensors):
            raise UnfollowedError("the way depends on numbers that the network computes")


@contextmanager
def _all_young() -> Iterator[None]:
    """Keep what is made in the garbage collector's youngest generation, apart from all that was there."""
    was_enabled = gc.isenabled()
    gc.collect(1)
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class UnfollowedError(Exception):
    """What the forward does cannot be noted."""


_PLAIN = (
    *(int, float, complex, bool, str, bytes, range, type(Ellipsis)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
_DECIDING = {"__bool__", "__int__", "__float__", "__index__", "item", "tolist"}
_IN_PLACE = {"add_": operator.iadd, "sub_": operator.isub, "mul_": operator.imul, "div_": operator.itruediv}
_REVERSED = {
    "__rdiv__": operator.truediv,
    **{f"__r{name}__": getattr(operator, name) for name in ("sub", "pow", "floordiv", "mod", "matmul")},
}
_OPERATORS = {
    f"__{name}__": getattr(operator, f"__{name}__")
    for name in ("getitem", "eq", "ne", "invert", "and", "or", "xor", "lt", "le", "gt", "ge")
}


def _target(func: Any, args: tuple, kwargs: Mapping[str, Any]) -> tuple[str, Any, tuple]:
    """How a graph calls a function: op, target and arguments."""
    name = func.__name__
    if func is getattr:
        return "call_function", getattr, args
    if name in _IN_PLACE and len(args) == 2 and not kwargs:
        return "call_function", _IN_PLACE[name], args
    if name in _REVERSED:
        return "call_function", _REVERSED[name], args[::-1]
    if name in _OPERATORS:
        return "call_function", _OPERATORS[name], args
    if getattr(torch.Tensor, name, None) is func:
        return "call_method", name, args
    return "call_function", func, args


def _line() -> tuple[str, int] | None:
    """File and number of the line of the network's own code that runs now; None where only torch's does."""
    frame, first = sys._getframe(), inspect.unwrap(Recording.run).__code__
    while frame is not None and frame.f_code.co_filename.startswith(_AROUND):
        frame = None if frame.f_code is first else frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


_AROUND = tuple(os.path.dirname(one) + os.sep for one in (__file__, torch.__file__))


def _is_made_of(value: Any, fields: Mapping[str, Any]) -> bool:
    """Whether a class can be called with its own items."""
    try:
        return len(items_of(type(value)(**dict.fromkeys(fields)))) >= 0
    except Exception:
        return False


@contextmanager
def _marked(model: nn.Module) -> Iterator[None]:
    """For a while, whole numbers that modules keep know whose they are."""
    changed = []
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if type(value) is int and not name.startswith("_"):
                changed.append((module, name, value))
        for owner, name, value in changed:
            if owner is module:
                vars(module)[name] = Size(value, Attribute(path, name))
    try:
        yield
    finally:
        for module, name, value in changed:
            if vars(module).get(name) == value:
                vars(module)[name] = value
