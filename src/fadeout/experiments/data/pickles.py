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

    >>> load(pickle.dumps({"labels": [3, 1], "name": b"batch 1"}, protocol=2))
    {'labels': [3, 1], 'name': b'batch 1'}
    >>> load(pickle.dumps(print))
    Traceback (most recent call last):
    ValueError: no pickle of plain data (it has no use for builtins.print)
    """
    try:
        _check_sizes(content)
        return _plain(_Unpickler(io.BytesIO(content), encoding="bytes").load(), {})
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise ValueError(f"no pickle of plain data ({error})") from error


def _check_sizes(content: bytes) -> None:
    """Raise if the C unpickler, which believes the sizes that it reads, would allocate more than there is."""
    for opcode, argument, _ in pickletools.genops(content):  # raises if fewer bytes follow than announced
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(content):
            raise ValueError(f"{len(content)} bytes with a memo of {argument} entries")


class _Call:
    """A call that a pickle asks for, which is noted and not made.

    Its ``__setstate__`` also keeps a pickle from setting attributes of the class.
    """

    state: Any = ()

    def __init__(self, *arguments: Any):
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Array(_Call):
    pass


class _Dtype(_Call):
    state = 3, "=", None, None, None


class _Bytes(_Call):
    """How Python 3 writes bytes into an old pickle: as text, to be encoded."""


_STAND_INS: dict[tuple[str, str], type[_Call]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,  # only named, as the first argument of _reconstruct
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Bytes,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise ValueError(f"it has no use for {module}.{name}") from None


def _plain(value: Any, seen: dict[int, Any]) -> Any:
    """``value`` with bytes and arrays for the calls that make them. ``seen``: shared parts are made once."""
    if type(value) in (bytes, str, int, float, bool, type(None)):
        return value
    if id(value) not in seen:
        seen[id(value)] = None  # until it is made
        if type(value) is dict:
            result = {_plain(key, seen): _plain(item, seen) for key, item in value.items()}
        elif type(value) in (list, tuple):
            result = type(value)([_plain(item, seen) for item in value])
        elif type(value) is _Bytes:
            text, encoding = value.arguments
            if type(text) is not str or encoding not in ("latin1", b"latin1"):
                raise ValueError("something else than bytes to encode")
            result = seen.setdefault(id(text), text.encode("latin1"))  # many calls may share a long text
        elif type(value) is _Array:
            _, shape, dtype, columns_first, content = value.state
            result = _array(shape, dtype, columns_first, _plain(content, seen))
        else:
            raise ValueError(f"a {type(value).__name__.strip('_')}")
        seen[id(value)] = result
    if seen[id(value)] is None:
        raise ValueError("a list or dictionary inside itself")
    return seen[id(value)]


def _array(shape: Any, dtype: Any, columns_first: Any, content: Any) -> np.ndarray:
    """An array of booleans, integers or floats, after every check that NumPy leaves to the caller."""
    if type(dtype) is not _Dtype or type(content) is not bytes or type(shape) is not tuple:
        raise ValueError("an array that is not made of numbers")
    _, order, *structure = dtype.state
    parts = (order, dtype.arguments[0])
    name = "".join(part.decode("latin1") if type(part) is bytes else part for part in parts)
    if not re.fullmatch(r"[<>|=](b1|[iu][1248]|f[248])", name) or structure[:3] != [None, None, None]:
        raise ValueError(f"an array of type {name!r}")
    # before a product, or a message, that could be as large as it likes
    if len(shape) > 32 or not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise ValueError("an array with sizes that no array has")
    if math.prod(shape) * np.dtype(name).itemsize != len(content):
        raise ValueError(f"an array of shape {shape} and {len(content)} bytes")
    return np.frombuffer(content, name).reshape(shape, order="F" if columns_first else "C")
