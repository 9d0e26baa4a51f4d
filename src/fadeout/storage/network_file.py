"""Save and load: one safetensors file with the weights, and a plain JSON plan of what was cut away.

In the file's metadata, ``fadeout`` is a JSON object with these fields:

- ``version``: of this format. A reader refuses what is newer than itself.
- ``plans``: how the network was cut, step by step, from what the user's constructor builds.
- ``tensors``: for each name the type, the shape, the CRC-32 of its bytes and, unless it is dense, how it is
  packed: the fields of :class:`fadeout.storage.packed_tensor.Packed`.
- ``tied``: names that share the tensor of another name.
- ``buffers``: which of the names are no parameters.
- ``checksum``: CRC-32 of all these fields.
"""

import json
import math
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fadeout._arguments import Leaves, checked
from fadeout._files import parse_json, write_tensors
from fadeout.compaction.compact import apply_plan
from fadeout.compaction.plan import Plan, plans_of
from fadeout.storage.packed_tensor import Packed, count_nonzero, pack, unpack
from fadeout.torch_bridge.parameters import clean, unwrap
from fadeout.torch_bridge.sharding import is_first, whole, write_for_all

VERSION = 1
T = TypeVar("T")


@checked
def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write a network, compact or not, to one file, in one move: a crash leaves the old file or the new one.

    Weights that are zero take nearly no room: a network of which 99 % are zero is stored in a few percent of
    its size. What is stored is the ``state_dict``, bit for bit, tied tensors once; nothing is pickled.

    Args:
        model: the network; it may be wrapped (DDP, ``torch.compile``, ``AveragedModel``). The parameters of a
            sharded one (FSDP2) are gathered one by one: every process calls, the first one writes, and
            the others wait until the file is there.
        path: of the file, by custom ``*.safetensors``.

    >>> import tempfile
    >>> model = nn.Linear(100, 100)
    >>> _ = model.weight.data[1:].zero_()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, Path(folder) / "model.safetensors")
    ...     again = load(Path(folder) / "model.safetensors", lambda: nn.Linear(100, 100))
    >>> torch.equal(again.weight, model.weight)
    True
    """
    model = unwrap(model)
    inner = [name for name, module in model.named_modules() if module is not model and plans_of(module)]
    if inner:
        raise ValueError(
            f"{inner[0]!r} was compacted by itself, and load() could not cut it again: save it by itself, or "
            "call fadeout.compact() on the whole network"
        )
    packed, stored, tied, first = {}, {}, {}, {}
    wrong: list[ValueError] = []  # raised when all is gathered, so that no process waits for another
    state = _state(model)
    writes = is_first(state.values())
    for name, tensor in state.items():
        if first.setdefault(id(tensor), name) != name:
            tied[name] = first[id(tensor)]
            continue
        full = whole(tensor)
        if not writes:
            continue
        try:
            packed[name], stored[name] = pack(full)
        except ValueError as error:
            wrong.append(ValueError(f"{name!r}: {error}"))
    fields = {
        "version": VERSION,
        "plans": [plan.as_data() for plan in plans_of(model)],
        "tensors": {name: _short(how) for name, how in packed.items()},
        "tied": tied,
        "buffers": [name for name, tensor in state.items() if not isinstance(tensor, nn.Parameter)],
    }
    header = {"fadeout": _json({**fields, "checksum": _checksum(fields)})}

    def write() -> None:
        if wrong:
            raise wrong[0]
        write_tensors(path, stored, header)

    write_for_all(state.values(), write)


@checked
def load(path: str | os.PathLike[str], build: Callable[[], nn.Module], *, leaves: Leaves = ()) -> nn.Module:
    """Build a network with the user's own constructor, cut it as the saved one was, and fill in the weights.

    Types are those of the file; device, mode (training or evaluation) and ``requires_grad`` are those that
    ``build`` gives. A file that is truncated, altered, of a newer version, or for another architecture raises
    a ``ValueError`` that says which tensor or field.

    Args:
        path: of a file that :func:`save` wrote.
        build: builds the network as it was before it was compacted; takes no arguments.
        leaves: as they were given to :func:`fadeout.compact`; since modules are made anew, classes of them.

    >>> import fadeout, tempfile
    >>> def build():
    ...     return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> model = build()
    >>> model[0].weight.data[:6], model[0].bias.data[:6] = 0, 0
    >>> small = fadeout.compact(model, torch.zeros(1, 4))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(small, Path(folder) / "small.safetensors")
    ...     load(Path(folder) / "small.safetensors", build)
    Sequential(
      (0): Linear(in_features=4, out_features=2, bias=True)
      (1): ReLU()
      (2): Linear(in_features=2, out_features=2, bias=True)
    )
    """
    if isinstance(build, nn.Module) or not callable(build):
        raise ValueError("build is a constructor that takes no arguments, such as lambda: Network(10)")
    file = File.read(path)
    model = build()
    if not isinstance(model, nn.Module):
        raise ValueError(f"build() makes a {type(model).__name__}, not a network")
    model = unwrap(model)
    if any(one.is_meta for one in chain(model.parameters(), model.buffers())):
        raise ValueError(
            "build() makes a network on the device 'meta', where weights have no values: build it on a real "
            "device, or call to_empty(device='cpu') in build(), where all that it needs is in its state_dict"
        )
    _set_main_type(model, file.packed)
    for number, plan in enumerate(file.plans):
        try:
            model = apply_plan(model, plan, leaves)
        except Exception as error:  # whatever a network does that was never meant for this plan
            reason = str(error).partition("\n\n")[0]  # what follows is torch's advice to itself
            raise ValueError(
                f"{path}: field 'plans' (number {number}) does not fit what build() makes: {reason}"
            ) from error
    state = _state(model)
    _check_same(file, state)
    loaded = {name: file.tensor(name) for name in state}
    for name, tensor in state.items():
        tensor.data = tensor.data.to(loaded[name].dtype)
    filled = model.state_dict()  # carries the versions of the modules, too
    filled.update({name: loaded[clean(model, name)] for name in filled})
    model.load_state_dict(filled)
    return model


@dataclass
class File:
    """What a file holds; the tensors are read one by one."""

    path: str
    plans: list[Plan]
    packed: dict[str, Packed]
    tied: dict[str, str]
    buffers: set[str]
    entries: dict[str, Any]
    data: memoryview

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "File":
        """Everything but the tensors."""
        content = memoryview(Path(path).read_bytes())
        length = int.from_bytes(content[:8], "little")
        if not 0 < length <= len(content) - 8:
            raise ValueError(f"{path} is no safetensors file, or truncated within its header")
        try:
            entries = parse_json(bytes(content[8 : 8 + length]))
            metadata = entries.pop("__metadata__", {})
        except (ValueError, AttributeError, TypeError) as error:
            raise ValueError(f"{path} is no safetensors file, or its header was altered: {error}") from error
        if not isinstance(metadata, dict) or "fadeout" not in metadata:
            raise ValueError(f"{path} was not written by fadeout.save: its metadata has no field 'fadeout'")
        try:
            fields = parse_json(metadata["fadeout"])
            if fields["version"] > VERSION:
                raise ValueError(
                    f"'version' is {fields['version']}, and this fadeout reads up to {VERSION}: upgrade it"
                )
            if fields.pop("checksum") != _checksum(fields):
                raise ValueError("'checksum' differs: a field was altered")
            plans = [Plan(**plan) for plan in fields["plans"]]
            packed = {name: Packed(*how) for name, how in fields["tensors"].items()}
            buffers = set(fields.get("buffers", []))
            packed |= {name: packed[other] for name, other in fields["tied"].items()}
        except KeyError as error:
            raise ValueError(f"{path}: field 'fadeout' of the metadata lacks {error}") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: field 'fadeout' of the metadata: {error}") from error
        return cls(os.fspath(path), plans, packed, fields["tied"], buffers, entries, content[8 + length :])

    def nonzero(self, name: str) -> int:
        """How many numbers of one of the tensors are not zero, checked; it is not made for that."""
        return self._checked(name, count_nonzero)

    def stored_bytes(self, name: str) -> int:
        """How much room one of the tensors takes in the file."""
        return len(self._bytes(name))

    def tensor(self, name: str) -> Tensor:
        """One of the tensors, checked."""
        return self._checked(name, unpack)

    def _checked(self, name: str, read: Callable[[Packed, memoryview], T]) -> T:
        stored = self._bytes(name)
        try:
            return read(self.packed[name], stored)
        except (ValueError, TypeError, IndexError, RuntimeError) as error:
            raise ValueError(f"{self.path}: tensor {self.tied.get(name, name)!r}: {error}") from error

    def _bytes(self, name: str) -> memoryview:
        stored = self.tied.get(name, name)
        try:
            start, end = self.entries[stored]["data_offsets"]
            if not 0 <= start <= end <= len(self.data):
                raise ValueError("the file is truncated, and does not hold all of it")
            return self.data[start:end]
        except KeyError as error:
            raise ValueError(
                f"{self.path}: tensor {stored!r} is missing, or its entry lacks {error}"
            ) from error
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.path}: tensor {stored!r}: {error}") from error


def _state(model: nn.Module) -> dict[str, Tensor]:
    """The model's own parameters and buffers, not copies of them, by names without a wrapper's prefix."""
    state = model.state_dict(keep_vars=True)
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"{name!r} in the state_dict is a {type(value).__name__}: only tensors can be stored"
            )
    return {clean(model, name): value for name, value in state.items()}


def _check_same(file: File, state: Mapping[str, Tensor]) -> None:
    missing = [name for name in state if name not in file.packed]
    unknown = [name for name in file.packed if name not in state]
    if missing or unknown:
        parts = [f"the file has no {', '.join(map(repr, missing[:5]))}"] if missing else []
        parts += [f"build() makes no {', '.join(map(repr, unknown[:5]))}"] if unknown else []
        raise ValueError(f"{file.path} is for another architecture: {'; '.join(parts)}")
    for name, tensor in state.items():
        how = file.packed[name]
        if list(tensor.shape) != how.shape or tensor.is_floating_point() != how.type.is_floating_point:
            raise ValueError(
                f"{file.path} is for another architecture: {name!r} is {how.dtype} {tuple(how.shape)} in the "
                f"file, {tensor.dtype} {tuple(tensor.shape)} in what build() makes"
            )


def _set_main_type(model: nn.Module, packed: Mapping[str, Packed]) -> None:
    """Move the model to the type that most of the stored numbers have: plans run on examples of that type."""
    here = _main_type((each.dtype, each.numel()) for each in chain(model.parameters(), model.buffers()))
    there = _main_type((how.type, math.prod(how.shape)) for how in packed.values())
    if there is not None and there != here:
        model.to(there)


def _main_type(sizes: Iterable[tuple[torch.dtype, int]]) -> torch.dtype | None:
    totals = Counter[torch.dtype]()
    for dtype, size in sizes:
        if dtype.is_floating_point:
            totals[dtype] += size
    return max(totals, key=lambda dtype: totals[dtype], default=None)


def _short(how: Packed) -> tuple[Any, ...]:
    """Without what is as usual: small networks have many small tensors."""
    return astuple(how)[: 7 if how.negative else 5 if how.positions != "dense" else 3]


def _json(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"), sort_keys=True)


def _checksum(fields: Mapping[str, Any]) -> int:
    return zlib.crc32(_json(fields).encode())
