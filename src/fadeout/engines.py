"""Where a network runs, and how long it takes there: PyTorch, its channels_last layout, onnxruntime.

What was measured is kept on disk, with a description of the machine, so that it is measured once.
"""

import hashlib
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fadeout import export
from fadeout._checks import extra, warn
from fadeout._files import parse_json, write_atomically
from fadeout._timing import BUSY, race, worst_spread
from fadeout.graph.example import Example
from fadeout.graph.side_effects import copied
from fadeout.torch_bridge.modes import still

Engine = Literal["pytorch", "channels_last", "onnxruntime"]


def time_networks(networks: Mapping[str, nn.Module], example: Example, engine: Engine) -> dict[str, float]:
    """The seconds of a forward pass of each network, in evaluation mode; they take turns.

    A machine too busy to measure (quartiles more than 15 % apart, three times) is warned of.

    Args:
        networks: by name.
        example: what they run on; the size of its batch counts.
        engine: where they run; onnxruntime has as many threads as PyTorch.

    >>> list(time_networks({"one": nn.Linear(2, 2)}, Example((torch.zeros(1, 2),)), "pytorch"))
    ['one']
    """
    device = device_of(next(iter(networks.values())))
    calls: dict[str, Callable[[], object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, network) in enumerate(networks.items()):
            path = Path(folder) / f"{number}.onnx"
            calls[name] = call_of(network, example, engine, path)
        timings = race(calls, torch.get_device_module(device).synchronize, clock=clock_of(device))
    if worst_spread(timings) > BUSY:
        warn(
            f"this machine is too busy to measure: after three attempts the times of whole networks in "
            f"{engine} still spread by {worst_spread(timings):.0%}"
        )
    return {name: timing.median for name, timing in timings.items()}


def call_of(model: nn.Module, example: Example, engine: Engine, path: Path) -> Callable[[], object]:
    """What runs a copy of a network once.

    Args:
        model: the network.
        example: what it runs on.
        engine: where it runs.
        path: where an ONNX file may be written, which must stay until it has been read.
    """
    if engine == "onnxruntime":
        given = example.kwargs or example.args
        export.onnx(model, path, given, tolerance=float("inf"))
        session = export.open_session(path, torch.get_num_threads())
        feed = export.feed(session, example)
        return lambda: session.run(None, feed)
    model, example = copied(model), Example(*example.fresh())  # it may write into what it is given
    if engine == "channels_last":
        model, example = _in_channels_last(model), example.map(_channels_last)

    def run() -> None:
        with still(model):
            model(*example.args, **example.kwargs)

    return run


def time_layer(layer: nn.Module, given: Tensor, engine: Engine) -> float:
    """The seconds of one layer alone, a convolution or a linear one, as it runs inside a network.

    In onnxruntime only the layer's own kernel counts: between two layers of a network nothing is reordered.
    """
    if engine == "onnxruntime":
        return _kernel_seconds(layer, given)
    if engine == "channels_last":
        layer, given = _in_channels_last(layer), _channels_last(given)
    with still(layer):
        return _alone(lambda: layer(given), given.device)


def _alone(call: Callable[[], object], device: torch.device) -> float:
    wait = torch.get_device_module(device).synchronize
    return race({"": call}, wait, rounds=5, attempts=1, clock=clock_of(device))[""].median


def clock_of(device: torch.device) -> Callable[[], float]:
    """With one thread the process's own time is what an idle machine would take, however busy this one is."""
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time if alone else time.perf_counter


def _in_channels_last(model: nn.Module) -> nn.Module:
    return model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def _channels_last(one: Tensor) -> Tensor:
    return one.contiguous(memory_format=torch.channels_last) if one.dim() == 4 else one


def device_of(model: nn.Module) -> torch.device:
    """Where a network runs: where its parameters are."""
    return next((tensor.device for tensor in model.parameters()), torch.device("cpu"))


# onnxruntime ------------------------------------------------------------------------------------------------


def _kernel_seconds(layer: nn.Module, given: Tensor) -> float:
    """What the kernels take, without what reorders their inputs and outputs: a profile tells them apart."""
    feed = {"given": given.numpy(force=True)}
    with tempfile.TemporaryDirectory() as folder:
        model, profile = _onnx_of(layer, given), Path(folder) / "profile"
        session = export.open_session(model, torch.get_num_threads(), profile)
        seconds = _alone(lambda: session.run(None, feed), given.device)
        events = parse_json(Path(session.end_profiling()).read_text())
    spent: dict[str, list[int]] = {}
    for event in events:
        if event["name"].endswith("_kernel_time"):
            spent.setdefault(event["args"]["op_name"], []).append(event["dur"])
        elif event["name"] == "model_run":
            spent.setdefault("run", []).append(event["dur"])
    each = {kind: statistics.median(own) for kind, own in spent.items()}
    whole = max(each.pop("run"), 1)
    return seconds * sum(own for kind, own in each.items() if not kind.startswith("Reorder")) / whole


def _onnx_of(layer: Any, given: Tensor) -> bytes:
    """An ONNX model of one layer: written down directly, in milliseconds where an export takes seconds."""
    with extra("export"):
        from onnx import TensorProto, helper, numpy_helper
    weight = layer.weight.detach().cpu()
    arrays = {"weight": weight.t() if isinstance(layer, nn.Linear) else weight}
    if layer.bias is not None:
        arrays["bias"] = layer.bias.detach().cpu()
    if isinstance(layer, nn.Linear):
        nodes = [helper.make_node("MatMul", ["given", "weight"], ["product"])]
        if layer.bias is not None:
            nodes.append(helper.make_node("Add", ["product", "bias"], ["out"]))
        nodes[-1].output[0] = "out"
    else:
        pads = layer._reversed_padding_repeated_twice[::-1]  # of the first dimension first: end, begin, ...
        settings: dict[str, Any] = {
            "kernel_shape": layer.kernel_size,
            "strides": layer.stride,
            "dilations": layer.dilation,
            "group": layer.groups,
            "pads": [*pads[1::2], *pads[::2]],
        }
        if layer.transposed:
            settings["output_padding"] = layer.output_padding
        kind = "ConvTranspose" if layer.transposed else "Conv"
        nodes = [helper.make_node(kind, ["given", *arrays], ["out"], **settings)]
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("given", TensorProto.FLOAT, list(given.shape))],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array.contiguous().numpy(), name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


# What was measured before -----------------------------------------------------------------------------------


def describe_machine(engine: Engine, device: torch.device) -> dict[str, Any]:
    """What a measured time depends on beside what was measured."""
    if engine == "onnxruntime":
        with extra("export"):
            import onnxruntime
        version = onnxruntime.__version__
    else:
        version = torch.__version__
    return {
        "measured": 3,  # how: from 2 on a layer is charged its kernels, from 3 on freed memory is kept
        "engine": engine,
        "version": version,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "processor": _processor(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


@cache
def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{platform.machine()} {next(names, platform.processor())}"


class Timings(dict[str, float]):
    """Seconds that were measured on one machine, by what was measured.

    Args:
        machine: :func:`describe_machine`; what another one has measured is not used.
    """

    def __init__(self, machine: Mapping[str, Any]):
        super().__init__()
        self.machine = dict(machine)
        self.update(self.read())

    @property
    def path(self) -> Path:
        """In the user's cache folder, named by a hash of the machine's description."""
        described = json.dumps(self.machine, sort_keys=True).encode()
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fadeout" / "timings"
        return folder / f"{hashlib.sha256(described).hexdigest()[:16]}.json"

    def read(self) -> dict[str, float]:
        """What the file has; one that cannot be read, or is of another machine, counts as none."""
        try:
            content = parse_json(self.path.read_bytes())
            if content["machine"] == self.machine:
                return {str(what): float(seconds) for what, seconds in content["seconds"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        return {}

    def measure(self, what: str, seconds: Callable[[], float]) -> float:
        """What was measured before, or else now."""
        if what not in self:
            self[what] = seconds()
        return self[what]


@contextmanager
def timings_of(engine: Engine, device: torch.device) -> Iterator[Timings]:
    """What was measured on this machine before; what is measured inside is added to the file at the end.

    A file that cannot be written is not.
    """
    found = Timings(describe_machine(engine, device))
    known = len(found)
    try:
        yield found
    finally:
        if len(found) > known:
            seconds = {**found.read(), **found}  # another process may have added some
            content = json.dumps({"machine": found.machine, "seconds": seconds}, indent=1)
            try:
                found.path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(found.path, lambda file: file.write_text(content))
            except OSError:
                pass  # a cache is a convenience
