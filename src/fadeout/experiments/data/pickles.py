"""Pickles as data: arrays, bytes, lists, dictionaries, numbers and strings, and nothing that could run."""

import io
import math
import pickle
import pickletools
import re
from typing import Any

import numpy as np


def load(content: bytes) -> Any:
    """What a pickle holds; a ValueError if it holds, or would call, anything but plain data.

    The names that a pickle may look up lead to stand-ins of this file, never to what they name.
    Python 2's strings become bytes. What a pickle takes is bounded by its own size: an object that announces
    more bytes than follow, or a memo with more entries than there are bytes, is refused before it is made.

    Args:
        content: of the pickle.

    >>> load(pickle.dumps({"labels": [3, 1], "name": b"batch 1"}, protocol=2))
    {'labels': [3, 1], 'name': b'batch 1'}
    >>> load(pickle.dumps(print))
    Traceback (most recent call last):
    ValueError: a pickle of plain data has no use for builtins.print
    """
    try:
        _check_sizes(content)
        return _plain(_Unpickler(io.BytesIO(content), encoding="bytes").load(), {})
    except ValueError:
        raise
    except MemoryError as error:
        raise ValueError("a pickle that asks for more memory than there is") from error
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise ValueError(f"no pickle of plain data ({error})") from error


def _check_sizes(content: bytes) -> None:
    """Raise if the C unpickler, which believes the sizes that it reads, would allocate more than there is."""
    memo = 0
    try:  # reading an opcode raises where fewer bytes follow than it announces
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT"):
                memo = max(memo, int(argument or 0))
    except ValueError as error:
        raise ValueError(f"no pickle of plain data ({error})") from error
    if memo > len(content):
        raise ValueError(f"a pickle of {len(content)} bytes with a memo of {memo} entries")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise ValueError(f"a pickle of plain data has no use for {module}.{name}") from None


# Each stand-in has a __setstate__, so that a pickle cannot set attributes of the class itself


class _Dtype:
    """What stands for a NumPy type until its byte order is known: booleans, integers, floats, no objects."""

    __slots__ = ("kind", "order")

    def __init__(self, kind: object, *_: object):
        self.kind, self.order = _text(kind), "="
        if not re.fullmatch(r"b1|[iu][1248]|f[248]", self.kind):
            raise ValueError(f"a pickle with an array of type {self.kind!r}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, order, *structure = state
        if structure[:3] != [None, None, None] or _text(order) not in ("<", ">", "|", "="):
            raise ValueError("a pickle with an array of a compound type")
        self.order = _text(order)


class _Array:
    """What stands for an array until its content is known."""

    __slots__ = ("values",)

    def __init__(self, *_: object):
        self.values = np.empty(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, columns_first, content = state
        if type(dtype) is not _Dtype or type(content) is not bytes or type(shape) is not tuple:
            raise ValueError("a pickle with an array that is not made of numbers")
        numpy_dtype = np.dtype(dtype.order + dtype.kind)
        if any(type(size) is not int or size < 0 for size in shape):
            raise ValueError(f"a pickle with an array of shape {shape}")
        if math.prod(shape) * numpy_dtype.itemsize != len(content):
            raise ValueError(f"a pickle with an array of shape {shape} and {len(content)} bytes")
        self.values = np.frombuffer(content, numpy_dtype).reshape(shape, order="F" if columns_first else "C")


class _Encoded(bytes):
    """How Python 3 writes bytes into an old pickle: as text, to be encoded."""

    def __new__(cls, text: object, encoding: object) -> "bytes":  # pyright: ignore[reportInconsistentConstructor]
        if type(text) is not str or _text(encoding) != "latin1":
            raise ValueError("a pickle that encodes something else than bytes")
        return text.encode("latin1")

    def __setstate__(self, state: object) -> None:
        raise ValueError("a pickle that changes bytes")


_STAND_INS: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,  # only named, as the first argument of _reconstruct
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Encoded,
}


def _text(name: object) -> str:
    return name.decode("latin1") if isinstance(name, bytes) else str(name)


_UNDER_WAY = object()


def _plain(value: Any, seen: dict[int, Any]) -> Any:
    """``value`` with arrays in place of what stands for them. ``seen``: shared parts are visited once."""
    if type(value) in (bytes, str, int, float, bool, type(None)):
        return value
    if type(value) is _Array:
        return value.values
    if type(value) not in (list, tuple, dict):
        raise ValueError(f"a pickle with a {type(value).__name__.strip('_')}, which is no plain data")
    result = seen.get(id(value))
    if result is _UNDER_WAY:
        raise ValueError("a pickle with a list or dictionary inside itself")
    if result is None:
        seen[id(value)] = _UNDER_WAY
        if type(value) is dict:
            result = {_plain(key, seen): _plain(item, seen) for key, item in value.items()}
        else:
            result = type(value)([_plain(item, seen) for item in value])
        seen[id(value)] = result
    return result
