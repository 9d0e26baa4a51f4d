"""What a saved file tells of its network, without the code that builds it."""

import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from fadeout._tables import printable, table
from fadeout.compaction.plan import Plan
from fadeout.storage.network_file import File
from fadeout.storage.packed_tensor import Packed


@dataclass
class Layer:
    """What the file holds for one module.

    Attributes:
        name: the module's name in the network; empty for the network's own tensors.
        tensors: name, shape and, if it was cut, former shape of each, as text.
        types: of its tensors.
        parameters: how many it holds; tied ones count where they first occur.
        nonzero: how many of them are not zero.
        bytes: what its tensors take when loaded.
        stored: what they take in the file.
    """

    name: str
    tensors: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    parameters: int = 0
    nonzero: int = 0
    bytes: int = 0
    stored: int = 0


@dataclass(frozen=True)
class Summary:
    """What :func:`summarize` found; ``print(summary)`` shows a table."""

    layers: list[Layer]
    total: Layer
    plans: list[Plan]
    file_bytes: int

    def __str__(self) -> str:
        heads = ["layer", "tensors", "types", "parameters", "non-zero", "bytes", "stored"]
        lines = [heads, *map(_columns, (*self.layers, self.total))]
        share = f" ({self.total.nonzero / self.total.parameters:.1%})" if self.total.parameters else ""
        counts = f"{self.total.parameters:,} parameters, {self.total.nonzero:,} of them not zero{share}"
        end = ["", counts, *map(printable, self._history()), f"file: {self.file_bytes:,} bytes"]
        return "\n".join([*table(lines, words=3), *end])

    def _history(self) -> list[str]:
        """A line for each time that the network was cut."""
        if not self.plans:
            return ["not compact: the network is as its constructor builds it"]
        counts = [*(plan.parameters for plan in self.plans), self.total.parameters]
        return [
            f"compact: {_summary(plan)}; {before:,} parameters -> {after:,}"
            for plan, before, after in zip(self.plans, counts[:-1], counts[1:], strict=True)
        ]


def summarize(path: str | os.PathLike[str]) -> Summary:
    """Read a file, and say what is in it, layer by layer; every tensor is checked on the way.

    >>> import fadeout, tempfile, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> model[0].weight.data[:6], model[0].bias.data[:6] = 0, 0
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fadeout.save(fadeout.compact(model, torch.zeros(1, 4)), Path(folder) / "small.safetensors")
    ...     print(summarize(Path(folder) / "small.safetensors"))  # doctest: +ELLIPSIS +NORMALIZE_WHITESPACE
    layer  tensors                               types    parameters  non-zero  bytes  stored
    -----------------------------------------------------------------------------------------
    0      weight 2x4 (was 8x4), bias 2 (was 8)  float32          10        10     40      40
    2      weight 2x2 (was 2x8), bias 2          float32           6         6     24      24
    -----------------------------------------------------------------------------------------
    total                                        float32          16        16     64      64
    <BLANKLINE>
    16 parameters, 16 of them not zero (100.0%)
    compact: cut for inputs of 1x4 float32, 3 tensors cut; 58 parameters -> 16
    file: ... bytes
    """
    file = File.read(path)
    was = {name: shape for plan in reversed(file.plans) for name, shape in plan.was.items()}
    layers = defaultdict[str, Layer](lambda: Layer(""))
    for name, how in sorted(file.packed.items(), key=lambda item: _order(*item, file)):
        module, _, leaf = name.rpartition(".")
        layer = layers[module]
        layer.name = module
        before = f" (was {_by(was[name])})" if name in was else ""
        tied = f" = {file.tied[name]}" if name in file.tied else ""
        layer.tensors.append(f"{leaf} {_by(how.shape)}{before}{tied}")
        if how.dtype not in layer.types:
            layer.types.append(how.dtype)
        if tied:
            continue
        nonzero = file.nonzero(name)
        layer.bytes += how.numel * how.type.itemsize
        layer.stored += file.stored_bytes(name)
        if name not in file.buffers:
            layer.parameters += how.numel
            layer.nonzero += nonzero
    total = Layer("total", types=sorted({one for layer in layers.values() for one in layer.types}))
    for name in ("parameters", "nonzero", "bytes", "stored"):
        setattr(total, name, sum(getattr(layer, name) for layer in layers.values()))
    return Summary(list(layers.values()), total, file.plans, Path(path).stat().st_size)


def _order(name: str, how: Packed, file: File) -> tuple:
    """Modules by name, 2 before 10; of each the parameters first, weights before biases."""
    module, _, leaf = name.rpartition(".")
    parts = tuple((not part.isdigit(), int(part) if part.isdigit() else part) for part in module.split("."))
    return parts, name in file.buffers, -len(how.shape), leaf


def _columns(layer: Layer) -> list[str]:
    numbers = (layer.parameters, layer.nonzero, layer.bytes, layer.stored)
    tensors = ", ".join(layer.tensors)
    return [layer.name or "(itself)", tensors, ", ".join(layer.types), *(f"{n:,}" for n in numbers)]


def _summary(plan: Plan) -> str:
    """What a plan did, in a few words."""
    inputs = " and ".join(f"{_by(one['shape'])} {one['dtype']}" for one in plan.inputs)
    words = [f"cut for inputs of {inputs}", f"{len(plan.was)} tensors cut"]
    folded = sum(map(len, plan.constants.values()))
    words += [f"{folded} constants stand in for channels"] if folded else []
    words += [f"{len(plan.biases)} biases added"] if plan.biases else []
    words += [f"{len(plan.folded)} batch-norms folded"] if plan.folded else []
    words += ["both sides of additions alike"] if plan.couple else []
    return ", ".join(words)


def _by(shape: list[int]) -> str:
    return "x".join(map(str, shape)) if shape else "scalar"
