"""What the command line does with files: inspect, compact, export."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import torch
import tyro
from torch import nn

from fadeout import export as exporting
from fadeout.compaction.compact import compact as cut
from fadeout.compaction.plan import plans_of
from fadeout.graph.example import Example
from fadeout.measure import measure
from fadeout.storage import network_file
from fadeout.storage.summary import summarize
from fadeout.torch_bridge.modes import still

File = Annotated[Path, tyro.conf.arg(metavar="FILE")]
Output = Annotated[Path, tyro.conf.arg(metavar="OUTPUT")]
Input = Annotated[tuple[str, ...], tyro.conf.arg(metavar="SHAPE ...")]


def inspect(file: File, /, *, model: str = "", input: Input = (), repeats: int = 0) -> None:
    """Print what a saved network holds, layer by layer: tensors, parameters, bytes, and what was cut away.

    Args:
        file: what fadeout.save wrote.
        model: for operations and times too, the constructor of the network before it was compacted, as
            package.module:function.
        input: the shape of an example, such as 1,3,32,32, or of each of several; 1,128:int64 says its type,
            tokens=1,128:int64 its name. A compact network knows its own.
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
    if repeats < 0:
        raise ValueError(f"--repeats is a number of forward passes, got {repeats}")
    print(measure(network, _example(network, input), repeats=repeats))
    print(f"file: {file.stat().st_size:,} bytes")


def compact(
    file: File,
    output: Output,
    /,
    *,
    model: str,
    input: Input = (),
    couple: bool = False,
    for_inference: bool = False,
) -> None:
    """Remove the dead channels of a saved network physically, and save what is left.

    Args:
        file: what fadeout.save wrote.
        output: the file to write.
        model: the constructor of the network, as package.module:function.
        input: the shape of an example, such as 1,3,32,32, or of each of several; 1,128:int64 says its type,
            tokens=1,128:int64 its name.
        couple: both sides of an addition keep the same channels.
        for_inference: also fold constants that hold only in evaluation mode.
    """
    network = network_file.load(file, constructor(model))
    small = cut(network, _example(network, input), couple=couple, for_inference=for_inference)
    network_file.save(small, output)
    before, after = (sum(p.numel() for p in one.parameters()) for one in (network, small))
    print(f"{before:,} parameters -> {after:,} ({after / before:.1%}); written to {output}")


def export(file: File, output: Output, /, *, model: str, input: Input = ()) -> None:
    """Export a saved network to ONNX (*.onnx) or torch.export (*.pt2); what was written is run and compared.

    Args:
        file: what fadeout.save wrote.
        output: the file to write; its ending says which format.
        model: the constructor of the network before it was compacted, as package.module:function.
        input: the shape of an example, such as 1,3,32,32, or of each of several; 1,128:int64 says its type,
            tokens=1,128:int64 its name. A compact network knows its own.
    """
    formats: dict[str, Callable[..., exporting.Exported]] = {
        ".onnx": exporting.onnx,
        ".pt2": exporting.program,
    }
    write = formats.get(output.suffix)
    if write is None:
        raise ValueError(f"the output ends in {' or '.join(formats)}, got {output.name!r}")
    network = network_file.load(file, constructor(model)).eval()
    example = _example(network, input)
    try:
        done = write(network, output, example)
    except RuntimeError as error:  # it cannot be exported, or the file gives something else
        raise ValueError(str(error)) from error
    print(
        f"written to {done.path}: {done.bytes:,} bytes, outputs within {done.difference:.1g} of the network's"
    )


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
    except Exception as error:  # whatever the user's own module does
        raise ValueError(f"cannot find the model {name!r}: {_reason(error)}") from error
    if not callable(found):
        raise ValueError(f"{name!r} is no function")

    make = cast(Callable[[], nn.Module], found)

    def build() -> nn.Module:
        try:
            return make()
        except Exception as error:
            raise ValueError(
                f"{name}() makes no network ({_reason(error)}): name a function that needs no arguments"
            ) from error

    build.__name__ = function
    return build


def _example(network: nn.Module, shapes: Sequence[str]) -> Any:
    """Inputs of the given shapes, or of those that the network was compacted with."""
    inputs = _inputs(network, shapes)
    example = Example.of(inputs)
    try:
        with still(network):
            example.run(network)
    except Exception as error:
        sizes = " and ".join(str(tuple(each.shape)) for each in example.tensors)
        raise ValueError(f"the network does not take inputs of shape {sizes}: {_reason(error)}") from error
    return inputs


def _inputs(network: nn.Module, shapes: Sequence[str]) -> Any:
    if shapes:
        parameter = next(network.parameters(), torch.empty(0))
        read = [_input(shape, parameter.dtype) for shape in shapes]
        named = {name: tensor for name, tensor in read if name}
        if named and len(named) < len(read):
            raise ValueError(f"--input has names for all or for none, each once; got {' '.join(shapes)}")
        return named or tuple(tensor for _, tensor in read)
    plans = plans_of(network)
    if not plans:
        raise ValueError("pass the shape of an example: --input 1,3,32,32")
    example = plans[-1].example()
    return example.kwargs or example.args


def _input(text: str, usual: torch.dtype) -> tuple[str, torch.Tensor]:
    """The name, or none, and zeros of the shape and type that a text says.

    >>> _input("tokens=1,2:int64", torch.float32)
    ('tokens', tensor([[0, 0]]))
    """
    name, _, rest = text.rpartition("=")
    shape, _, kind = rest.partition(":")
    try:
        if kind and kind not in _TYPES:
            raise ValueError
        dtype = getattr(torch, kind) if kind else usual
        return name, torch.zeros([int(size) for size in shape.split(",")], dtype=dtype)
    except (ValueError, RuntimeError, TypeError, MemoryError):  # negative, or larger than the memory
        raise ValueError(
            f"--input is a shape such as 1,3,32,32, got {text!r}; with a type (1,128:int64) of "
            f"{', '.join(_TYPES)}, and perhaps a name (tokens=1,128:int64)"
        ) from None


_TYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool")


def _reason(error: Exception) -> str:
    """The first line of an error: torch adds advice to itself."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
