"""How large a network is and what it costs: parameters, operations, bytes, time."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from fadeout._arguments import ExampleInput, Only, checked, fitting_example
from fadeout._checks import MissingExtraError
from fadeout._tables import table
from fadeout.engines import Engine, device_of, time_networks
from fadeout.graph.example import Example
from fadeout.graph.rules.registry import rule_of_module
from fadeout.torch_bridge.matrix_products import counting_products
from fadeout.torch_bridge.modes import still
from fadeout.torch_bridge.parameters import unwrap

Spread = Annotated[int, Only(lambda n: 1 < n <= 10**6, "a whole number from 2 up, so that there is a spread")]
Repeats = Annotated[int, Only(lambda n: 0 <= n <= 10**6, "a whole number from 0 to a million")]


@dataclass
class Row:
    """The figures of one layer, or of the whole network.

    Attributes:
        name: the module's name in the network; empty for the network's own parameters and products.
        kind: the module's class.
        calls: how often it ran on the example.
        parameters: how many it holds; tied ones count where they first occur.
        nonzero: how many of them are not zero (all of them on the meta device, which has no values).
        operations_input: operations as the paper's text has it, by the *input's* height and width.
        operations_output: the same by the *output's* height and width, as the authors' code has it.
        macs: multiply-accumulates of convolutions, linear and recurrent layers, attention and other matrix
            products.
        bytes: what its parameters and buffers take in a dense state dict, without the file's header.
    """

    name: str
    kind: str
    calls: int = 0
    parameters: int = 0
    nonzero: int = 0
    operations_input: int = 0
    operations_output: int = 0
    macs: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Latency:
    """Seconds for one forward pass: the median of ``repeats`` passes, and the quartiles around it."""

    median: float
    lower: float
    upper: float
    repeats: int

    def __str__(self) -> str:
        low, middle, high = (f"{1e3 * s:.3g}" for s in (self.lower, self.median, self.upper))
        return f"{middle} ms (quartiles {low} to {high}, {self.repeats} passes)"


@dataclass(frozen=True)
class Stored:
    """Bytes of all parameters and buffers in each form, without a file's header.

    Attributes:
        dense: as a plain state dict has them.
        saved: at most, as :func:`fadeout.save` packs them.
        onnx: as :func:`fadeout.export.onnx` writes them with ``sparse=True``.
    """

    dense: int
    saved: int
    onnx: int

    def __str__(self) -> str:
        return f"bytes {self.dense:,} dense, {self.saved:,} by fadeout.save, {self.onnx:,} as sparse ONNX"


@dataclass(frozen=True)
class Speed:
    """How long a forward pass takes in each engine, beside what the operations promise.

    Attributes:
        seconds: by engine: ``"pytorch"``, ``"channels_last"`` for images, ``"onnxruntime"``.
        macs: multiply-accumulates of the pass.
        before: seconds of the network that it is compared with, by engine; empty where there is none.
        macs_before: its multiply-accumulates.
        missing: by engine, why it was not timed.
    """

    seconds: dict[str, float]
    macs: int
    before: dict[str, float]
    macs_before: int
    missing: dict[str, str]

    @property
    def faster(self) -> dict[str, float]:
        """How many times as fast as before it is, by engine, and as ``"operations"`` would have it."""
        if not self.before:
            return {}
        real = {engine: self.before[engine] / seconds for engine, seconds in self.seconds.items()}
        return {**real, "operations": self.macs_before / max(self.macs, 1)}

    def __str__(self) -> str:
        lines = [["engine", "ms", "before", "times as fast"]]
        for engine, seconds in self.seconds.items():
            before = f"{1e3 * self.before[engine]:.3g}" if self.before else ""
            lines.append([engine, f"{1e3 * seconds:.3g}", before, f"{self.faster.get(engine, 1):.2f}"])
        operations = [f"{macs / 1e6:.3g} M" for macs in (self.macs, self.macs_before)]
        lines.append(["operations", *operations, f"{self.faster.get('operations', 1):.2f}"])
        shown = table(lines if self.before else [line[:2] for line in lines], words=1)
        return "\n".join([*shown, *(f"{engine}: {why}" for engine, why in self.missing.items())])


@dataclass(frozen=True)
class Measurement:
    """What :func:`measure` found: ``rows`` for the layers, ``total``, ``latency`` and ``speed`` if asked for.

    ``stored`` has the bytes of each form in which the network may be stored.

    ``print(measurement)`` shows a table, ``to_dict()`` gives plain numbers for a JSON file.
    """

    rows: tuple[Row, ...]
    total: Row
    latency: Latency | None = None
    stored: Stored = Stored(0, 0, 0)
    speed: Speed | None = None

    def to_dict(self) -> dict[str, Any]:
        """Rows, total, latency and speed as plain dictionaries and numbers."""
        return {**asdict(self), "rows": [asdict(row) for row in self.rows]}

    def __str__(self) -> str:
        heads = ["layer", "type", "calls", "parameters", "non-zero", "ops (input)", "ops (output)"]
        lines = [[*heads, "MACs", "bytes"]]
        for row in (*self.rows, self.total):
            name, kind, *numbers = (getattr(row, field.name) for field in fields(row))
            lines.append([name or "(itself)", kind, *(f"{number:,}" for number in numbers)])
        ends = [str(self.stored), *([f"latency {self.latency}"] if self.latency else [])]
        ends += [f"\n{self.speed}"] if self.speed else []
        return "\n".join([*table(lines, words=2), *ends])


@checked
def measure(
    model: nn.Module,
    example_input: ExampleInput,
    *,
    repeats: Repeats = 0,
    time: bool = False,
    against: nn.Module | None = None,
) -> Measurement:
    """Count what a network holds and what one forward pass costs, layer by layer and in all.

    The network runs once, in evaluation mode, and is left as it was. All figures are for the example as
    given: pass a batch of one image for the cost of an image. What holds zeros is counted like the
    rest, except in ``nonzero``: :func:`fadeout.compact` first, to see what removal brings.

    Operations follow section 4.5 of the paper, which makes no distinction between additions and
    multiplications, and looks at these layers only::

        convolution      f_in f_out k^2 h w     (f_in / groups, where there are groups)
        normalisation    2 f h w
        dense            f_in f_out + f_out     (for each position)

    The text takes h and w from the input, the authors' code (for the basic blocks of ResNet-20) from the
    output; they differ where a convolution changes the size. ResNet-20 with 64 maps on 32 by 32 images
    has 775.8 M operations by the input and 650.0 M by the output. The column "Ops" of the paper's Table 3
    gives the share left in pruned networks, without a total, and each of its values can come about under
    either reading. What the authors' code records is the count by the output, so ``operations_output`` is
    what to compare the column with.

    ``macs`` is taken from the tensors that were multiplied, whether by a module or by a function, and
    belongs to the innermost module around. Normalisations, activations and pooling have none; nor have
    sparse products. What ``Channels(..., of="operations")`` counts is their total.

    Args:
        model: any module; a module that runs twice counts twice in operations, once in parameters.
        example_input: a tensor, or a tuple of positional or a mapping of keyword arguments.
        repeats: if above 0, the forward pass is also timed that often, see :func:`latency`.
        time: the forward pass is timed in PyTorch, with images in PyTorch's ``channels_last`` layout too, and
            in onnxruntime where the extra ``export`` is installed, with as many threads as PyTorch has.
        against: another network, such as the dense one: with ``time``, how many times as fast as it this one
            is in each engine, beside what the operations promise. The two take turns.

    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(4))
    >>> print(measure(model, torch.zeros(1, 3, 8, 8)))
    layer  type         calls  parameters  non-zero  ops (input)  ops (output)   MACs  bytes
    ----------------------------------------------------------------------------------------
    0      Conv2d           1         108       108        6,912         1,728  1,728    432
    1      BatchNorm2d      1           8         4          128           128      0     72
    ----------------------------------------------------------------------------------------
    total  Sequential       1         116       112        7,040         1,856  1,728    504
    bytes 504 dense, 472 by fadeout.save, 472 as sparse ONNX
    """
    # a compiled forward would run past the hooks, and a wrapper would prefix every name
    inner = unwrap(model)
    rows = _weights(inner)
    run = _forward(inner, example_input)
    with still(inner), _counting(rows), fitting_example():
        run()
    kept = tuple(r for r in rows.values() if r.parameters or r.bytes or r.operations_output or r.macs)
    total = Row("total", type(inner).__name__, calls=1)
    for field in fields(Row)[3:]:
        setattr(total, field.name, sum(getattr(row, field.name) for row in kept))
    timed = latency(model, example_input, repeats) if repeats else None
    if against is not None and not time:
        raise ValueError("against= is what the times are compared with: pass time=True")
    speed = _speed(inner, against, example_input, total.macs) if time else None
    return Measurement(kept, total, timed, _stored(inner, total.bytes), speed)


@checked
def latency(model: nn.Module, example_input: ExampleInput, repeats: Spread = 30) -> Latency:
    """Time the forward pass, in evaluation mode and without gradients, after three passes to warm up.

    Args:
        model: any module, on the device where it is to be timed.
        example_input: as for :func:`measure`.
        repeats: how many passes are timed, each on its own.

    >>> latency(nn.Linear(2, 2), torch.zeros(1, 2), repeats=5).repeats
    5
    """
    run = _forward(model, example_input)
    wait = _synchronizer(model)
    times = []
    with still(model), fitting_example():
        for _ in range(3 + repeats):
            wait()
            start = time.perf_counter()
            run()
            wait()
            times.append(time.perf_counter() - start)
    lower, median, upper = statistics.quantiles(times[3:], n=4, method="inclusive")
    return Latency(median, lower, upper, repeats)


def _speed(model: nn.Module, against: nn.Module | None, example_input: Any, macs: int) -> Speed:
    """Time a network, and perhaps another one, in all engines that there are."""
    _synchronizer(model)  # not on the meta device
    networks, macs_before = {"now": model}, 0
    if against is not None:
        networks["before"] = unwrap(against)
        macs_before = measure(against, example_input).total.macs
    example = Example.of(example_input)
    engines: list[Engine] = ["pytorch", "onnxruntime"]
    if any(each.dim() == 4 and each.is_floating_point() for each in example.tensors):
        engines.insert(1, "channels_last")
    found: dict[str, dict[str, float]] = {"now": {}, "before": {}}
    missing = {}
    for engine in engines:
        try:
            seconds = time_networks(networks, example, engine)
        except MissingExtraError as error:
            missing[engine] = str(error)
        except (ValueError, RuntimeError) as error:  # it cannot be exported
            missing[engine] = str(error).partition("\n")[0]
        else:
            for which, each in seconds.items():
                found[which][engine] = each
    return Speed(found["now"], macs, found["before"], macs_before, missing)


def _weights(model: nn.Module) -> dict[nn.Module, Row]:
    """A row for each module, with what it holds itself."""
    rows, seen = {}, set()
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(
                f"{name or 'the network'} is TorchScript, whose layers cannot be watched: measure the "
                "network that it was made of"
            )
        row = rows[module] = Row(name, type(module).__name__)
        for parameter in module.parameters(recurse=False):
            if parameter not in seen:
                row.parameters += parameter.numel()
                row.nonzero += parameter.numel() if parameter.is_meta else _nonzero(parameter)
                row.bytes += parameter.nbytes
        stored = [
            b for n, b in module.named_buffers(recurse=False) if n not in module._non_persistent_buffers_set
        ]
        row.bytes += sum(buffer.nbytes for buffer in stored if buffer not in seen)
        seen.update(module.parameters(recurse=False), stored)
    return rows


def _stored(model: nn.Module, dense: int) -> Stored:
    """The bytes of each form: values that are not zero and their positions, where that is less."""
    saved = sparse = dense
    for tensor in {id(each): each for each in model.state_dict(keep_vars=True).values()}.values():
        if not isinstance(tensor, Tensor) or tensor.is_meta or not tensor.is_floating_point():
            continue
        if tensor.layout is not torch.strided:  # of fadeout.sparse: it has no zeros to leave out
            continue
        number, count, size = tensor.numel(), _nonzero(tensor), tensor.itemsize
        # a bit for each, or for each that is there the number before it that is not, in one or two bytes
        gaps = [count * width + (number - count) // (256**width - 1) for width in (1, 2)]
        saved -= max(number * size - count * size - min(-(-number // 8), *gaps), 0)
        sparse -= max(number * size - count * (size + 8), 0)
    return Stored(dense, saved, sparse)


def _nonzero(tensor: Tensor) -> int:
    if tensor.is_floating_point() and tensor.itemsize == 1:
        tensor = tensor.float()  # PyTorch counts no float8
    return int(tensor.count_nonzero())


def _forward(model: nn.Module, example: ExampleInput) -> Callable[[], object]:
    if not isinstance(example, Tensor | tuple | Mapping):
        raise ValueError(
            "example_input is a tensor, a tuple of positional arguments or a mapping of keyword arguments, "
            f"got {type(example).__name__}"
        )
    args, kwargs = Example.of(example).fresh()  # once, not in each pass that is timed
    return lambda: model(*args, **kwargs)


@contextmanager
def _counting(rows: dict[nn.Module, Row]) -> Iterator[None]:
    """Add the cost of what runs meanwhile to the rows of the modules that run it."""
    open_calls: list[list[int]] = []  # for each module being run: count at its start, count of its children

    def enter(module: nn.Module, args: Any) -> None:
        open_calls.append([so_far(), 0])

    def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        start, children = open_calls.pop()
        macs = so_far() - start
        if open_calls:
            open_calls[-1][1] += macs
        row = rows[module]
        row.calls += 1
        row.macs += macs - children
        given = args[0] if args else kwargs.get("input")
        by_input, by_output = rule_of_module(module).operations(module, given, output)
        row.operations_input += by_input
        row.operations_output += by_output

    with ExitStack() as stack:
        so_far = stack.enter_context(counting_products())
        for module in rows:
            stack.callback(module.register_forward_pre_hook(enter).remove)
            stack.callback(module.register_forward_hook(leave, with_kwargs=True).remove)
        yield


def _synchronizer(model: nn.Module) -> Callable[[], object]:
    """What waits until the model's device has done its work."""
    device = device_of(model)
    if device.type == "meta":
        raise ValueError("a model on the meta device cannot be timed: build it on a real device")
    return torch.get_device_module(device).synchronize
