"""What users pass, checked against the annotations of what they call: the signature says what is accepted.

A function or class marked with :func:`checked` raises a ``ValueError`` that names the argument, what is
accepted and what was given, before anything else happens. NumPy's scalars become plain numbers on the way.
What a type cannot say is said with it: ``Annotated[int, Only(lambda n: n > 0, "a whole number above 0")]``.
"""

import functools
import inspect
import math
import numbers
import os
import reprlib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from torch import Tensor, nn

F = TypeVar("F", bound=Callable[..., Any])


class Only(NamedTuple):
    """Of the values that a type allows, those that pass a test; and how to say so in a message."""

    accepts: Callable[[Any], object]
    words: str


_LARGEST = 2**31 - 1  # torch counts no further in many places

Count = Annotated[int, Only(lambda n: 1 <= n <= _LARGEST, "a whole number from 1 up")]
Number = Annotated[float, Only(math.isfinite, "a finite number")]
Share = Annotated[float, Only(lambda x: 0 < x <= 1, "a fraction above 0 and at most 1")]
Weights = Annotated[Tensor, Only(lambda t: t.is_floating_point(), "a tensor of floating-point numbers")]


def _holds_tensors(value: Any) -> bool:
    """Whether there is a tensor in what a network is to be called with."""
    inside = list(value.values()) if isinstance(value, Mapping) else value
    if not isinstance(inside, list | tuple):
        return isinstance(inside, Tensor)
    return any(map(_holds_tensors, inside))


ExampleInput = Annotated[
    Any,
    Only(_holds_tensors, "a tensor, a tuple of positional arguments or a mapping of keyword arguments"),
]
Leaves = Iterable[nn.Module | type]

_ELSEWHERE = ("optimizer",)  # which has a check of its own: one or several, wrapped or not


def checked(what: F) -> F:
    """Check the arguments of a function, or of a class's constructor, before it runs.

    >>> @checked
    ... def stretch(factor: float, axis: Literal["x", "y"] = "x"):
    ...     return factor, axis
    >>> stretch("2")
    Traceback (most recent call last):
    ValueError: factor is a number, got '2'
    >>> stretch(2, axis="z")
    Traceback (most recent call last):
    ValueError: axis is one of 'x', 'y', got 'z'
    """
    if isinstance(what, type):
        what.__init__ = checked(what.__init__)  # pyright: ignore[reportAttributeAccessIssue]
        return what  # pyright: ignore[reportReturnType]
    signature = inspect.signature(what)

    @functools.cache
    def kinds() -> dict[str, Any]:  # when first called: annotations may name what is defined later
        hints = get_type_hints(what, include_extras=True)
        return {name: kind for name, kind in hints.items() if name not in (*_ELSEWHERE, "return")}

    @functools.wraps(what)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return what(*args, **kwargs)  # which says what is missing, or too much
        for name, value in bound.arguments.items():
            if name in kinds() and value is not signature.parameters[name].default:
                bound.arguments[name] = fitted(name, value, kinds()[name])
        return what(*bound.args, **bound.kwargs)

    return call  # pyright: ignore[reportReturnType]


@contextmanager
def fitting_example() -> Iterator[None]:
    """Run a network on an example inside, and whatever it raises becomes a ``ValueError`` that says so.

    >>> with fitting_example():  # doctest: +ELLIPSIS
    ...     nn.Linear(2, 2)(3)
    Traceback (most recent call last):
    ValueError: the model cannot be run on example_input: ...
    """
    try:
        yield
    except Exception as error:
        raise ValueError(f"the model cannot be run on example_input: {error}") from error


def fitted(name: str, value: Any, kind: Any) -> Any:
    """A value as its annotation wants it, or a ``ValueError``.

    >>> import numpy
    >>> fitted("steps", numpy.int64(3), int)
    3
    """
    try:
        return _fit(value, kind)
    except _UnfitError:
        hint = ""
        if isinstance(value, type) and any(_is_class(one) and issubclass(value, one) for one in _union(kind)):
            hint = f": the class itself. Did you mean {value.__name__}(...)?"
        raise ValueError(f"{name} is {words(kind)}, got {shown(value)}{hint}") from None


class _UnfitError(Exception):
    """A value is not of a kind."""


def _fit(value: Any, kind: Any) -> Any:
    """A value, as a kind wants it; raises where it is none of that kind."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        value = _fit(value, parts[0])
        if not all(only.accepts(value) for only in parts[1:] if isinstance(only, Only)):
            raise _UnfitError
        return value
    if kind in _PLAIN:
        return _PLAIN[kind](value)
    if origin in (Union, types.UnionType):
        for one in parts:
            try:
                return _fit(value, one)
            except _UnfitError:
                continue
        raise _UnfitError
    if kind in (Any, object) or isinstance(kind, TypeVar):
        return value
    accept = {Literal: _literal, Callable: _callable, type: _subclass, tuple: _tuple}.get(origin)
    if accept is not None:
        return accept(value, parts)
    if not isinstance(value, origin or kind):
        raise _UnfitError
    return _elements(value, parts) if parts and isinstance(value, Iterable) else value


def _scalar(value: Any) -> Any:
    """A number of NumPy or torch as Python's own; anything else as it is."""
    if getattr(value, "ndim", None) == 0 and callable(getattr(value, "item", None)):
        return value.item() if not getattr(value, "is_meta", False) else value
    return value


def _number(value: Any) -> float:
    value = _scalar(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise _UnfitError
    return value if isinstance(value, int | float) and type(value) in (int, float) else float(value)


def _whole(value: Any) -> int:
    value = _number(value)
    if not math.isfinite(value) or value != int(value):
        raise _UnfitError
    return int(value)


def _flag(value: Any) -> bool:
    value = _scalar(value)
    if not isinstance(value, bool):
        raise _UnfitError
    return value


_PLAIN: dict[Any, Callable[[Any], Any]] = {bool: _flag, int: _whole, float: _number}


def _literal(value: Any, accepted: tuple[Any, ...]) -> Any:
    if not any(type(value) is type(one) and value == one for one in accepted):
        raise _UnfitError
    return value


def _callable(value: Any, parts: tuple[Any, ...]) -> Any:
    """A callable, if it takes as many arguments as it will be given."""
    if not callable(value):
        raise _UnfitError
    if parts and isinstance(parts[0], list):
        try:
            signature = inspect.signature(value)
        except (TypeError, ValueError):  # of some builtins there is none to be had
            return value
        try:
            signature.bind(*parts[0])
        except TypeError:
            raise _UnfitError from None
    return value


def _subclass(value: Any, parts: tuple[Any, ...]) -> Any:
    if not isinstance(value, type) or not issubclass(value, parts):
        raise _UnfitError
    return value


def _tuple(value: Any, parts: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(value, tuple | list) or (parts[-1] is not ... and len(parts) != len(value)):
        raise _UnfitError
    kinds = parts[:1] * len(value) if parts[-1] is ... else parts
    return tuple(map(_fit, value, kinds))


def _elements(value: Any, parts: tuple[Any, ...]) -> Any:
    """What holds others, if they are of the right kind; what can be gone through only once becomes a list."""
    if isinstance(value, Mapping):
        for key, element in value.items():
            _fit(key, parts[0])
            _fit(element, parts[-1])
        return value
    if isinstance(value, Tensor) or (isinstance(value, str) and parts[0] is not str):
        raise _UnfitError
    value = list(value) if isinstance(value, Iterator) else value
    for element in value:
        _fit(element, parts[0])
    return value


# In words ---------------------------------------------------------------------------------------------------


def words(kind: Any) -> str:
    """What is accepted, for a message.

    >>> words(float | Callable[[float], float])
    'a number or a schedule'
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        own = [only.words for only in parts[1:] if isinstance(only, Only)]
        return own[-1] if own else words(parts[0])
    if origin in (Union, types.UnionType):
        *some, last = dict.fromkeys(map(words, parts))
        return f"{', '.join(some)} or {last}" if some else last
    if origin is Literal:
        return f"one of {', '.join(map(repr, parts))}"
    if origin is Callable:
        return _callable_in_words(parts)
    if origin is type:
        return f"a class such as {getattr(parts[0], '__name__', parts[0])}"
    if origin is tuple:
        return f"{'several' if parts[-1] is ... else len(parts)} of: {words(parts[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a mapping from {words(parts[0])} to {words(parts[1])}"
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return f"several of: {words(parts[0])}"
    said = _WORDS.get(origin or kind) or getattr(kind, "_in_words", "")
    return said or f"a {getattr(kind, '__name__', kind)}"


def _callable_in_words(parts: tuple[Any, ...]) -> str:
    if parts and parts[0] == [float]:
        return "a schedule"
    count = len(parts[0]) if parts and isinstance(parts[0], list) else None
    numbers = {None: "", 0: " without arguments", 1: " of one argument", 2: " of two arguments"}
    return f"a callable{numbers.get(count, f' of {count} arguments')}"


_WORDS: dict[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    type(None): "None",
    Tensor: "a tensor",
    nn.Module: "a torch.nn.Module",
    os.PathLike: "a path",
    type: "a class",
    Any: "anything",
}


def shown(value: object) -> str:
    """A value for a message: short, and without the address of an object.

    >>> shown(nn.Linear(2, 2)), shown("text")
    ('a Linear', "'text'")
    """
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and type {value.dtype}"
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, nn.Module):
        return f"a {type(value).__name__}"
    try:
        text = _short.repr(value)
    except Exception:
        text = object.__repr__(value)
    name = getattr(value, "__qualname__", None) or f"a {type(value).__qualname__}"
    return name if " at 0x" in text else text


_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


def _union(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _is_class(kind: Any) -> bool:
    return isinstance(kind, type) and get_origin(kind) is None
