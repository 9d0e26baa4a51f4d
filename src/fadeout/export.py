"""Export to ONNX and ``torch.export``; what was written is run, and compared, before it is put in place."""

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from fadeout.extras import extra
from fadeout.files import write_atomically
from fadeout.measure import still
from fadeout.parameters import unwrap

Run = Callable[[tuple[Tensor, ...]], list[Tensor]]


@dataclass(frozen=True)
class Exported:
    """What an export wrote."""

    path: Path
    bytes: int
    difference: float
    """The largest difference between the outputs of the file and of the model, as ``tolerance`` counts it."""


def onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    example_input: Any,
    *,
    tolerance: float = 1e-4,
    dynamic_batch: bool = True,
) -> Exported:
    """Export a network, in evaluation mode, to one ONNX file.

    The file is run in onnxruntime on the example and, if the batch is dynamic, on a batch of another size.
    Only if the outputs are the model's is it put in place; otherwise a ``RuntimeError`` says how far off
    they are, and what was there before stays. The model is left as it was.

    Args:
        model: the network, wrapped or not.
        path: of the file, by custom ``*.onnx``.
        example_input: a tensor, or a tuple of tensors, that ``model(*example_input)`` takes.
        tolerance: the largest difference to accept; where the largest output of the model is above one,
            as a fraction of that.
        dynamic_batch: the file takes batches of any size, in the first dimension of all inputs.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = onnx(nn.Linear(4, 2), Path(folder) / "model.onnx", torch.randn(1, 4))
    >>> result.path.name, result.difference < 1e-4
    ('model.onnx', True)
    """
    with _quiet(), extra("export"):
        import onnxruntime
        import onnxscript  # noqa: F401 - torch.onnx.export needs it, and says so less clearly

    def write(exported: ExportedProgram, file: Path) -> None:
        program = torch.onnx.export(exported, (), dynamo=True, external_data=False, verbose=False)
        assert program is not None
        file.write_bytes(_plain(program.model_proto).SerializeToString())

    def open_file(file: Path) -> Run:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what goes wrong is raised, and need not be printed too
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]
        return lambda inputs: [
            torch.from_numpy(output)
            for output in session.run(
                None, {name: each.numpy(force=True) for name, each in zip(names, inputs, strict=True)}
            )
        ]

    return _export(model, path, example_input, tolerance, dynamic_batch, write, open_file)


def program(
    model: nn.Module,
    path: str | os.PathLike[str],
    example_input: Any,
    *,
    tolerance: float = 1e-4,
    dynamic_batch: bool = True,
) -> Exported:
    """Export a network, in evaluation mode, with ``torch.export``; ``torch.export.load`` reads the file.

    It is loaded again and compared with the model before it is put in place, as in :func:`onnx`, which has
    the same arguments.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = program(nn.Linear(4, 2), Path(folder) / "model.pt2", torch.randn(1, 4))
    >>> result.difference
    0.0
    """

    def write(exported: ExportedProgram, file: Path) -> None:
        with file.open("wb") as stream:
            torch.export.save(exported, stream)

    def open_file(file: Path) -> Run:
        with file.open("rb") as stream:
            module = torch.export.load(stream).module()
        return lambda inputs: _tensors(module(*inputs))

    return _export(model, path, example_input, tolerance, dynamic_batch, write, open_file)


def _export(
    model: nn.Module,
    path: str | os.PathLike[str],
    example_input: Any,
    tolerance: float,
    dynamic_batch: bool,
    write: Callable[[ExportedProgram, Path], None],
    open_file: Callable[[Path], Run],
) -> Exported:
    model, path = unwrap(model), Path(path)
    inputs = example_input if isinstance(example_input, tuple) else (example_input,)
    if not inputs or not all(isinstance(each, Tensor) for each in inputs):
        raise ValueError("example_input is a tensor, or a tuple of tensors, that model(*example_input) takes")
    batches = [inputs]
    if dynamic_batch:
        size = _batch_size(inputs)
        batches.append(_batch(inputs, size + 2))  # neither the example's size nor that of the export below
    difference = 0.0

    def write_and_compare(file: Path) -> None:
        nonlocal difference
        exported = _traced(model, inputs, dynamic_batch)
        try:
            write(exported, file)
            run = open_file(file)
            outputs = [run(batch) for batch in batches]
        except Exception as error:
            raise RuntimeError(f"the network cannot be exported to {path.name}: {error}") from error
        difference = max(_difference(_tensors(model(*b)), o) for b, o in zip(batches, outputs, strict=True))
        if not difference <= tolerance:
            raise RuntimeError(
                f"the outputs of the exported file differ from the model's by {difference:.3g}, more than "
                f"{tolerance:.3g}: {path} was not written. Does the model draw random numbers, or branch on "
                "values?"
            )

    with still(model), _quiet():
        write_atomically(path, write_and_compare)
    return Exported(path, path.stat().st_size, difference)


def _traced(model: nn.Module, inputs: tuple[Tensor, ...], dynamic_batch: bool) -> ExportedProgram:
    shapes = None
    if dynamic_batch:
        # torch.export takes a size of one for a constant
        inputs = _batch(inputs, max(2, _batch_size(inputs)))
        batch = Dim("batch")
        shapes = tuple({0: batch} if each.dim() else None for each in inputs)
        if _takes_any_number(model):
            shapes = (shapes,)
    try:
        return torch.export.export(model, inputs, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        hint = " If only the size of the batch is at fault, pass dynamic_batch=False." if dynamic_batch else ""
        raise ValueError(f"torch.export cannot trace the network: {error}{hint}") from error
