"""Real speed over what the operations say, with widths in multiples and without.

    python benchmarks/speed.py widths

Networks lose 50, 75 and 90 % of their parameters in whole channels: as scores have it; in multiples; in
multiples, both sides of an addition keeping the same channels; and by Torch-Pruning with ``round_to`` (left
out where it is not installed).
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import small_networks
import torch
from rows import Part, Row, table
from small_networks import command, in_turns, quietly, threads, without_channels
from torch import Tensor, nn

import fadeout
from fadeout.structures.channels.rounding import multiple_for

ENGINES = ("onnxruntime", "channels_last")
LEAST = {"onnxruntime": 0.9, "channels_last": 0.6}  # of what the operations say
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "ResNet-20, 64 maps, batch 16": (small_networks.resnet20, (16, 3, 32, 32)),
    "ResNet-50, batch 1": (small_networks.resnet50, (1, 3, 224, 224)),
}
QUICK: dict[str, Any] = {
    "networks": {"ResNet-20": (lambda: small_networks.resnet20(8), (1, 3, 8, 8))},
    "targets": (0.5,),
    "rounds": 2,
}


def measure(
    networks: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = NETWORKS,
    targets: tuple[float, ...] = (0.5, 0.75, 0.9),
    counts: tuple[int, ...] = (1, 2),
    rounds: int = 7,
) -> Part:
    """Time the dense network and all that came out of it, in turns.

    Args:
        networks: by name, what builds them, and the shape of their input.
        targets: fractions of the parameters that go.
        counts: of threads.
        rounds: of all of them.
    """
    multiple = multiple_for("auto", "onnxruntime")
    rows, lines, facts = list[Row](), list[list[str]](), list[dict[str, Any]]()
    for name, (build, shape) in networks.items():
        given = torch.randn(shape)
        small = _shrink(build, given[:1], targets, multiple)
        whole = build()
        totals = {key: fadeout.measure(one, given[:1]).total for key, one in {"": whole, **small}.items()}
        times: dict[tuple[str, int], Any] = {}
        for count in counts:
            for engine in ENGINES:
                with threads(count):
                    times[engine, count] = in_turns({"": whole, **small}, given, engine, rounds)
        for key in small:
            operations = totals[""].macs / totals[key].macs
            gone = 1 - totals[key].parameters / totals[""].parameters
            line = [name, key, f"{gone:.1%}", f"{operations:.1f}x"]
            fact: dict[str, Any] = {"network": name, "what": key, "gone": gone, "operations": operations}
            for (engine, count), timings in times.items():
                speed = timings[""].median / timings[key].median
                line.append(f"{speed:.1f}x ({speed / operations:.2f})")
                fact[f"{engine}, {count} threads"] = speed
                if "multiples" in key:
                    what = f"{name}, {key}, {engine}, {count} threads"
                    rows.append(Row(what, [speed / operations] * 3, at_least=LEAST[engine]))
            lines.append(line)
            facts.append(fact)
    about = (
        f"How many times as fast as the dense network, and in brackets the share of what the operations say; "
        f"{command('widths', counts)}. Random weights. PyTorch runs in channels_last with batch-norms "
        "folded; with one thread the clock is that of the process, with two that on the wall."
    )
    heads = [f"{engine}, {count} thread{'s' * (count > 1)}" for count in counts for engine in ENGINES]
    own = table(["network", "channels go", "parameters gone", "operations say", *heads], lines)
    met = sum(bool(row.met) for row in rows)
    own += (
        f"\n\n{met} of {len(rows)} rows with multiples reach 0.9 of the operations in onnxruntime and 0.6 in "
        "PyTorch."
    )
    return Part("Real speed over operations", about, rows, {"rows": facts, "multiple": multiple}, own)


def _shrink(
    build: Callable[[], nn.Module], example: Tensor, targets: tuple[float, ...], multiple: int
) -> dict[str, nn.Module]:
    """The network after each removal."""
    found: dict[str, nn.Module] = {}
    for target in targets:
        ways: dict[str, dict[str, Any]] = {
            "any width": {"multiple_of": 1},
            f"multiples of {multiple}": {"multiple_of": multiple},
            f"multiples of {multiple}, coupled": {"multiple_of": multiple, "couple": True},
        }
        for way, options in ways.items():
            structure = fadeout.Channels(example, **options)
            found[f"{target:.0%}, {way}"] = without_channels(build(), structure, target)[0]
        other = _torch_pruning(build, example, target, multiple)
        if other is not None:
            found[f"{target:.0%}, Torch-Pruning, round_to={multiple}"] = other
    return found


def _torch_pruning(
    build: Callable[[], nn.Module], example: Tensor, target: float, multiple: int
) -> nn.Module | None:
    """The ratio of channels is sought that leaves as many parameters."""
    try:
        import torch_pruning  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        return None
    whole = build()
    size = _size(whole)
    low, high, best = 0.0, 1.0, None
    for _ in range(5):
        model, ratio = copy.deepcopy(whole), (low + high) / 2
        last: list[nn.Module] = [m for m in model.modules() if isinstance(m, nn.Linear)]
        with quietly():
            pruner = torch_pruning.pruner.BNScalePruner(
                model,
                example,
                importance=torch_pruning.importance.BNScaleImportance(),
                pruning_ratio=ratio,
                global_pruning=True,
                ignored_layers=last,
                round_to=multiple,
                max_pruning_ratio=0.95,
            )
            pruner.step()
        gone = 1 - _size(model) / size
        if best is None or abs(gone - target) < abs(1 - _size(best) / size - target):
            best = model
        low, high = (ratio, high) if gone < target else (low, ratio)
    return best


def _size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
