"""What the command line does with files: inspect, compact, export."""

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from fadeout import export as exporting
from fadeout.compaction.compact import compact as cut
from fadeout.compaction.plan import plans_of
from fadeout.measure import measure
from fadeout.storage import network_file
from fadeout.storage.summary import summarize


def inspect(file: Path, /, *, model: str = "", input: str = "", repeats: int = 0) -> None:
    """Print what a saved network holds, layer by layer: tensors, parameters, bytes, and what was cut away.

    Args:
        file: what fadeout.save wrote.
        model: for operations and times too, the constructor of the network before it was compacted, as
            package.module:function.
        input: the shape of an example, such as 1,3,32,32; a compact network knows its own.
        repeats: also time so many forward passes.
    """
    if not model:
        if input or repeats:
            raise ValueError(
                "operations and times need the network itself: pass --model package.module:function"
            )
        print(summarize(file))
        return
    network = network_file.load(file, constructor(model)).eval()
    print(measure(network, _example(network, input), repeats=repeats))
    print(f"file: {file.stat().st_size:,} bytes")


def compact(
    file: Path,
    output: Path,
    /,
    *,
    model: str,
    input: str = "",
    couple: bool = False,
    for_inference: bool = False,
) -> None:
    """Remove the dead channels of a saved network physically, and save what is left.

    Args:
        file: what fadeout.save wrote.
        output: the file to write.
        model: the constructor of the network, as package.module:function.
        input: the shape of an example, such as 1,3,32,32.
        couple: both sides of an addition keep the same channels.
        for_inference: also fold constants that hold only in evaluation mode.
    """
    network = network_file.load(file, constructor(model))
    small = cut(network, _example(network, input), couple=couple, for_inference=for_inference)
    network_file.save(small, output)
    before, after = (sum(p.numel() for p in one.parameters()) for one in (network, small))
    print(f"{before:,} parameters -> {after:,} ({after / before:.1%}); written to {output}")


def export(file: Path, output: Path, /, *, model: str, input: str = "") -> None:
    """Export a saved network to ONNX (*.onnx) or torch.export (*.pt2); what was written is run and compared.

    Args:
        file: what fadeout.save wrote.
        output: the file to write; its ending says which format.
        model: the constructor of the network before it was compacted, as package.module:function.
        input: the shape of an example, such as 1,3,32,32; a compact network knows its own.
    """
    formats: dict[str, Callable[..., exporting.Exported]] = {
        ".onnx": exporting.onnx,
        ".pt2": exporting.program,
    }
    write = formats.get(output.suffix)
    if write is None:
        raise ValueError(f"the output ends in {' or '.join(formats)}, got {output.name!r}")
    network = network_file.load(file, constructor(model)).eval()
    print(write(network, output, _example(network, input)))


def constructor(name: str) -> Callable[[], nn.Module]:
    """The function of this name, such as ``fadeout.models:resnet20``; the working folder is searched too.

    >>> constructor("fadeout.models:lenet5").__name__
    'lenet5'
    """
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise ValueError(f"--model is package.module:function, got {name!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"cannot find the model {name!r}: {error}") from error
    if not callable(found):
        raise ValueError(f"{name!r} is no function")
    return cast(Callable[[], nn.Module], found)


def _example(network: nn.Module, shape: str) -> Any:
    """Inputs of the given shape, or of those that the network was compacted with."""
    parameter = next(network.parameters(), torch.empty(0))
    if shape:
        try:
            sizes = [int(size) for size in shape.split(",")]
        except ValueError:
            raise ValueError(f"--input is a shape such as 1,3,32,32, got {shape!r}") from None
        return (torch.zeros(sizes, dtype=parameter.dtype),)
    plans = plans_of(network)
    if not plans:
        raise ValueError("pass the shape of an example: --input 1,3,32,32")
    example = plans[-1].example()
    return example.kwargs or example.args
