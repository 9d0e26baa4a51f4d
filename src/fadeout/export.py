"""Export to ONNX and ``torch.export``; what was written is run, and compared, before it is put in place."""

import contextlib
import inspect
import io
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from fadeout._arguments import ExampleInput, Only, checked, fitting_example
from fadeout._checks import extra
from fadeout._files import write_atomically
from fadeout.graph.example import Example, tensors_in
from fadeout.torch_bridge.modes import still
from fadeout.torch_bridge.parameters import unwrap

__all__ = ["Exported", "onnx", "program"]

Tolerance = Annotated[float, Only(lambda x: x >= 0, "a number from 0 on")]
Run = Callable[[Example], list[Tensor]]


@dataclass(frozen=True)
class Exported:
    """What an export wrote."""

    path: Path
    bytes: int
    difference: float
    """The largest difference between the outputs of the file and of the model, as ``tolerance`` counts it."""


@checked
def onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    example_input: ExampleInput,
    *,
    tolerance: Tolerance = 1e-4,
    dynamic_batch: bool = True,
    sparse: bool = False,
) -> Exported:
    """Export a network, in evaluation mode, to one ONNX file.

    The file is run in onnxruntime on the example and, if the batch is dynamic, on a batch of another size.
    Only if the outputs are the model's is it put in place; otherwise a ``RuntimeError`` says how far off
    they are, and what was there before stays. The model is left as it was.

    Args:
        model: the network, wrapped or not.
        path: of the file, by custom ``*.onnx``.
        example_input: a tensor, a tuple of tensors that ``model(*example_input)`` takes, or a mapping of
            those that ``model(**example_input)`` takes.
        tolerance: the largest difference to accept; where the largest output of the model is above one,
            as a fraction of that.
        dynamic_batch: the file takes batches of any size, in the first dimension of all inputs.
        sparse: tensors with enough zeros, in float32 two of three, are written as ``sparse_initializer``:
            each value that is not zero with its position, twelve bytes in all. The file is smaller, and as
            fast as a dense one: onnxruntime unpacks the tensors when it loads them. Other readers may not
            know of sparse initializers.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = onnx(nn.Linear(4, 2), Path(folder) / "model.onnx", torch.randn(1, 4))
    >>> result.path.name, result.difference < 1e-4
    ('model.onnx', True)
    """
    with _quiet(), extra("export"):
        import onnxruntime  # noqa: F401 - what is not installed is said before anything is traced
        import onnxscript  # noqa: F401 - torch.onnx.export needs it, and says so less clearly

    def write(exported: ExportedProgram, file: Path, shapes: Any) -> None:
        # the shapes once more, for the name of the dynamic dimension
        made = torch.onnx.export(
            exported, (), dynamo=True, external_data=False, verbose=False, dynamic_shapes=shapes
        )
        assert made is not None
        plain = _plain(made.model_proto)
        file.write_bytes((_sparse(plain) if sparse else plain).SerializeToString())

    def open_file(file: Path) -> Run:
        session = open_session(file)
        return lambda example: [torch.from_numpy(each) for each in session.run(None, feed(session, example))]

    return _export(model, path, example_input, tolerance, dynamic_batch, write, open_file)


@checked
def program(
    model: nn.Module,
    path: str | os.PathLike[str],
    example_input: ExampleInput,
    *,
    tolerance: Tolerance = 1e-4,
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

    def write(exported: ExportedProgram, file: Path, shapes: Any) -> None:
        for node in exported.graph.nodes:
            node.meta.pop("stack_trace", None)  # names the user's files
        content = io.BytesIO()  # on a full disk, its writer would abort the process
        torch.export.save(exported, content)
        file.write_bytes(content.getbuffer())

    def open_file(file: Path) -> Run:
        with file.open("rb") as stream:
            module = torch.export.load(stream).module()
        return lambda example: tensors_in(module(*example.args, **example.kwargs))

    return _export(model, path, example_input, tolerance, dynamic_batch, write, open_file)


def open_session(model: Path | bytes, threads: int = 0, profile: Path | None = None) -> Any:
    """An ONNX model in onnxruntime.

    Args:
        model: a file, or what would be in it.
        threads: how many it may use; with 0 as many as onnxruntime likes.
        profile: how the names of the files begin that say where its time went, if they are wanted.
    """
    with extra("export"):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised, and need not be printed too
    options.intra_op_num_threads = threads
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(profile)
    file = str(model) if isinstance(model, Path) else model
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def feed(session: Any, example: Example) -> dict[str, np.ndarray]:
    """What an example gives to the inputs of a session."""
    names = [each.name for each in session.get_inputs()]
    given = example.kwargs or dict(zip(names, example.args, strict=True))
    return {name: given[name].numpy(force=True) for name in names}


def _export(
    model: nn.Module,
    path: str | os.PathLike[str],
    example_input: Any,
    tolerance: float,
    dynamic_batch: bool,
    write: Callable[[ExportedProgram, Path, Any], None],
    open_file: Callable[[Path], Run],
) -> Exported:
    """Trace, write, run and compare; then put the file in place."""
    model, path = unwrap(model), Path(path)
    example = Example.of(example_input)
    inputs = [*example.args, *example.kwargs.values()]
    if not inputs or not all(isinstance(each, Tensor) for each in inputs):
        raise ValueError(
            "example_input is a tensor, a tuple of tensors that model(*example_input) takes, or a mapping of "
            "those that model(**example_input) takes"
        )
    if any(each.layout is not torch.strided for each in model.buffers()):
        raise ValueError(
            "a network of fadeout.sparse() cannot be exported: its sparse products are PyTorch's own. Export "
            "the network that it was made of; onnx(..., sparse=True) writes the zeros of that in few bytes"
        )
    size = _batch_size(inputs) if dynamic_batch else 0

    with still(model), fitting_example():
        example.run(model)
    traced, batches, axes = example, [example], {}
    if dynamic_batch:
        axes = {0: Dim("batch")}
        traced = _batch(example, max(size, 2))  # torch.export takes a size of one for a constant
        batches.append(_batch(example, size + 2))
    difference = 0.0

    def write_and_compare(file: Path) -> None:
        nonlocal difference
        try:
            shapes = traced.map(lambda each: axes if each.dim() else None)
            with _all_named(model, traced):
                bound = inspect.signature(model.forward).bind(*shapes.args, **shapes.kwargs)
                named = dict(bound.arguments) if dynamic_batch else None
                exported = torch.export.export(
                    model, traced.args, traced.kwargs, dynamic_shapes=named, strict=False
                )
        except Exception as error:
            hint = "; if it is the size of the batch, pass dynamic_batch=False" if dynamic_batch else ""
            raise ValueError(f"torch.export cannot trace the network{hint}: {error}") from error
        try:
            write(exported, file, named)
            run = open_file(file)
            outputs = [run(Example(*batch.fresh())) for batch in batches]
        except OSError:  # a full disk says nothing about the network
            raise
        except Exception as error:
            low = any(each.dtype == torch.bfloat16 for each in (*model.parameters(), *inputs))
            hint = " (onnxruntime runs little in bfloat16: export a copy in float32)" if low else ""
            raise RuntimeError(
                f"{path.name} cannot be made of this network, or not run{hint}: {error}"
            ) from error
        wanted = [tensors_in(batch.run(model)) for batch in batches]
        difference = max(map(_difference, wanted, outputs))
        if not difference <= tolerance:
            raise RuntimeError(
                f"the exported outputs are off by {difference:.3g}, and {tolerance:.3g} is accepted: {path} "
                "was not written. Does the network draw random numbers, or branch on the size of the batch?"
            )

    with still(model), _quiet():
        write_atomically(path, write_and_compare)
    return Exported(path, path.stat().st_size, difference)


@contextlib.contextmanager
def _all_named(model: nn.Module, example: Example) -> Iterator[None]:
    """Meanwhile the forward names what it takes as ``**kwargs``, where torch.export has no dynamic sizes."""
    plain, signature = model.forward, inspect.signature(model.forward)
    named = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    more = example.kwargs.keys() - {each.name for each in named}
    named += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in sorted(more)]

    def forward(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    forward.__signature__ = signature.replace(parameters=named)
    with mock.patch.object(model, "forward", forward) if more else contextlib.nullcontext():
        yield


def _batch_size(inputs: Sequence[Tensor]) -> int:
    sizes = {len(each) for each in inputs if each.dim()}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(
            f"for a dynamic batch the inputs have the same first dimension, not empty; theirs are "
            f"{sorted(sizes)}. Pass dynamic_batch=False to export for the shapes of the example alone"
        )
    return sizes.pop()


def _batch(example: Example, size: int) -> Example:
    """A batch of another size, of the same examples over and over."""
    return example.map(
        lambda each: each[torch.arange(size, device=each.device) % len(each)] if each.dim() else each
    )


def _difference(wanted: list[Tensor], found: list[Tensor]) -> float:
    """The largest difference, as a fraction of the largest wanted value if that is above one."""
    if [each.shape for each in wanted] != [each.shape for each in found]:
        return math.inf
    largest = 0.0
    for mine, theirs in zip(wanted, found, strict=True):
        mine, theirs = (each.detach().cpu().to(torch.complex128) for each in (mine, theirs))
        same = (mine == theirs) | (mine.isnan() & theirs.isnan())
        apart = torch.where(same, 0.0, (mine - theirs).abs()).nan_to_num(math.inf)
        if apart.numel():
            scale = torch.where(mine.isfinite(), mine.abs(), 0.0).max().clamp(min=1.0)
            largest = max(largest, float((apart / scale).max()))
    return largest


def _plain(model: Any) -> Any:
    """An ONNX model without the exporter's notes: they outweigh a small network and name the user's files."""
    graph = model.graph
    del graph.value_info[:]
    for each in (model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        del each.metadata_props[:]
    return model


_FLOATS = {1: "f4", 10: "f2", 11: "f8"}  # of ONNX: FLOAT, FLOAT16, DOUBLE
_INT64 = 7


def _sparse(model: Any) -> Any:
    """An ONNX model in which tensors are sparse where that takes fewer bytes.

    What is stored is the values that are not zero, and their positions row by row.
    """
    dense, outputs = list(model.graph.initializer), {each.name for each in model.graph.output}
    del model.graph.initializer[:]
    for tensor in dense:
        values = np.frombuffer(tensor.raw_data, _FLOATS.get(tensor.data_type, "u1"))
        positions = values.nonzero()[0]
        larger = tensor.data_type not in _FLOATS or len(positions) * (values.itemsize + 8) >= values.nbytes
        if larger or tensor.name in outputs:  # onnxruntime gives no sparse tensor away
            model.graph.initializer.append(tensor)
            continue
        made = model.graph.sparse_initializer.add()
        made.dims.extend(tensor.dims)
        for part, kind, numbers in (
            (made.values, tensor.data_type, values[positions]),
            (made.indices, _INT64, positions.astype("<i8")),
        ):
            part.data_type, part.raw_data = kind, numbers.tobytes()
            part.dims.append(len(numbers))
        made.values.name = tensor.name
    return model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Exporters print and warn a lot about themselves; what goes wrong is raised."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)
        yield
