"""Tensors as bytes: one that is mostly zeros takes little room, and every bit comes back.

A tensor is stored ``dense``, in its own type, or as the values that are not zero followed by their positions.
Places are stored in one of three ways, and of all forms the one that takes the fewest bytes is chosen:

- ``bitmask``: one bit for each value, lowest first.
- ``gaps8``, ``gaps16``: for each value that is there the number of those before it that are not, in one or
  two bytes. The largest number that fits says: so many, and more to come.

Zero means that all bits are zero: every NaN is a value. Negative zeros, which a weight times a mask leaves
behind, are values too, or have their positions stored likewise, after those of the values.
"""

import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

_GAPS = {"gaps8": np.dtype("u1"), "gaps16": np.dtype("<u2")}
# what every version of safetensors knows; other types are stored as bytes
_KNOWN = {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool}
_KNOWN |= {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}


@dataclass(frozen=True)
class Packed:
    """How a tensor is stored."""

    dtype: str
    shape: list[int]
    checksum: int
    """CRC-32 of the stored bytes."""
    positions: str = "dense"
    values: int = 0
    """How many values are stored, if it is not dense."""
    negative: str = ""
    """How the positions of negative zeros are stored, if they are."""
    negative_bytes: int = 0

    def __post_init__(self):
        if not isinstance(getattr(torch, str(self.dtype), None), torch.dtype):
            raise ValueError(f"this version of torch has no type {self.dtype!r}")
        numbers = [*self.shape, self.values, self.negative_bytes]
        if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
            raise ValueError(f"no tensor has the shape {str(self.shape)[:100]}")

    @property
    def type(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def pack(tensor: Tensor) -> tuple[Packed, Tensor]:
    """The smallest form of a tensor, and what must be known to unpack it.

    >>> tensor = torch.zeros(1000)
    >>> tensor[500] = 3
    >>> packed, stored = pack(tensor)
    >>> packed.positions, stored.numel()
    ('gaps8', 6)
    >>> torch.equal(unpack(packed, memoryview(stored.numpy())), tensor)
    True
    """
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise ValueError(f"a {tensor.layout} tensor of {tensor.dtype} on {tensor.device} cannot be stored")
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    raw = flat.view(torch.uint8).numpy()
    sparse = _sparse(raw.view(f"u{flat.itemsize}")) if flat.itemsize <= 8 else None
    stored, form = sparse or (raw, {})
    packed = Packed(
        str(flat.dtype).removeprefix("torch."), list(tensor.shape), zlib.crc32(stored.data), **form
    )
    if sparse is None and flat.dtype in _KNOWN:
        # a copy: safetensors refuses tensors that share memory
        return packed, flat.clone().reshape(tensor.shape)
    return packed, torch.from_numpy(stored.copy())


def unpack(packed: Packed, stored: memoryview) -> Tensor:
    """The tensor again; a ``ValueError`` if the bytes are not those that were stored."""
    values, positions, negative = _parts(packed, stored)
    if packed.positions != "dense":
        words = np.zeros(packed.numel, f"u{packed.type.itemsize}")
        words[positions] = values.view(words.dtype)
        words[negative] = _negative_zero(words)
        values = words.view(np.uint8)
    if not len(values):
        return torch.empty(packed.shape, dtype=packed.type)
    return torch.from_numpy(values).view(packed.type).reshape(packed.shape)


def count_nonzero(packed: Packed, stored: memoryview) -> int:
    """How many numbers are not zero, after the same checks; takes no more memory than what is stored.

    So a small file that claims to hold a tensor of many gigabytes, all of it zeros, can be looked at.
    """
    values, _, _ = _parts(packed, stored)
    return int(torch.from_numpy(values).view(packed.type).count_nonzero()) if len(values) else 0


def _parts(packed: Packed, stored: memoryview) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The bytes of the values, their positions and those of negative zeros, all of them checked."""
    raw = np.array(stored.cast("B"), np.uint8)  # a copy, since it must be aligned and writable
    if zlib.crc32(raw.data) != packed.checksum:
        raise ValueError("its bytes were altered, the checksum differs")
    nowhere, size = np.empty(0, np.int64), packed.type.itemsize
    if packed.positions == "dense":
        if len(raw) != packed.numel * size:
            raise ValueError(f"{len(raw)} bytes are no tensor of the shape {packed.shape}")
        return raw, nowhere, nowhere
    if packed.values * size + packed.negative_bytes > len(raw):
        raise ValueError(f"{packed.values} values take more than the {len(raw)} bytes that it has")
    values, places, others = np.split(raw, [packed.values * size, len(raw) - packed.negative_bytes])
    positions = _found(packed.positions, places, packed.numel)
    negative = _found(packed.negative, others, packed.numel) if packed.negative else nowhere
    if len(positions) != packed.values:
        raise ValueError(f"it has {packed.values} values and {len(positions)} positions")
    if any(len(found) and found[-1] >= packed.numel for found in (positions, negative)):
        raise ValueError(f"it has values outside of its shape {packed.shape}")
    return values, positions, negative


def _sparse(words: np.ndarray) -> tuple[np.ndarray, dict[str, Any]] | None:
    """The smallest sparse form and the fields that describe it; None if the dense one is smaller."""
    best, least = None, words.nbytes
    there, negative = words != 0, words == _negative_zero(words)
    for apart in (False, True) if negative.any() else (False,):
        kept = there & ~negative if apart else there
        count = int(np.count_nonzero(kept))
        if count * words.itemsize >= least:
            continue  # spares the work of finding positions
        way, positions = _positions(kept)
        other, others = _positions(negative) if apart else ("", positions[:0])
        stored = np.concatenate([words[kept].view(np.uint8), positions, others])
        if len(stored) < least:
            form = {"positions": way, "values": count, "negative": other, "negative_bytes": len(others)}
            best, least = (stored, form), len(stored)
    return best


def _negative_zero(words: np.ndarray) -> np.unsignedinteger:
    return words.dtype.type(1 << (8 * words.itemsize - 1))


def _positions(mask: np.ndarray) -> tuple[str, np.ndarray]:
    """The smallest way to say where a mask is true, and the bytes that say it."""
    gaps = np.diff(np.flatnonzero(mask), prepend=-1) - 1
    sizes = {"bitmask": -(-len(mask) // 8)}
    for way, kind in _GAPS.items():
        sizes[way] = kind.itemsize * int(len(gaps) + (gaps // np.iinfo(kind).max).sum())
    way = min(sizes, key=lambda each: sizes[each])
    if way == "bitmask":
        return way, np.packbits(mask, bitorder="little")
    most = np.iinfo(_GAPS[way]).max
    full, rest = np.divmod(gaps, most)
    numbers = np.full(sizes[way] // _GAPS[way].itemsize, most, _GAPS[way])
    numbers[np.cumsum(full + 1) - 1] = rest
    return way, numbers.view(np.uint8)


def _found(way: str, stored: np.ndarray, length: int) -> np.ndarray:
    """The positions again."""
    if way == "bitmask":
        if len(stored) != -(-length // 8):
            raise ValueError(f"the positions of {length} numbers are not in {len(stored)} bytes")
        return np.flatnonzero(np.unpackbits(stored, count=length, bitorder="little"))
    if way not in _GAPS:
        raise ValueError(f"its positions are stored in an unknown way, {way!r}")
    gaps = stored.view(_GAPS[way])
    ends = gaps != np.iinfo(_GAPS[way]).max
    return np.cumsum(gaps, dtype=np.int64)[ends] + np.arange(np.count_nonzero(ends))
