"""A target in time: asked, and got.

    python benchmarks/speed.py time_targets

Each network loses channels until, by the table that was measured, it is two, four and eight times as fast;
then what is left is timed against the whole.
"""

from collections.abc import Callable, Mapping
from typing import Any

import small_networks
import torch
from rows import Part, Row, table
from small_networks import command, quietly, threads
from torch import nn

import fadeout
from fadeout.structures.channels.network_times import time_removal

NETWORKS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "ResNet-20, 64 maps": (small_networks.resnet20, {}),
    "MobileNetV2": (small_networks.mobilenetv2, {}),
    "ViT, 192 wide, 3 heads": (small_networks.vit, {"by": "norm"}),
}
ENGINES = ("pytorch", "onnxruntime")
QUICK: dict[str, Any] = {
    "networks": {"ResNet-20": (lambda: small_networks.resnet20(8), {})},
    "speeds": (1.1,),
    "batch": 1,
    "size": 8,
    "engines": ("pytorch",),
}


def measure(
    networks: Mapping[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = NETWORKS,
    speeds: tuple[float, ...] = (2.0, 4.0, 8.0),
    engines: tuple[Any, ...] = ENGINES,
    batch: int = 16,
    size: int = 32,
) -> Part:
    """Ask for each speed of each network in each engine, on one thread.

    Args:
        networks: by name, what builds them, and how their channels are ranked.
        speeds: over that of the dense network.
        engines: where they run.
        batch: of images.
        size: of an image.
    """
    rows, lines, facts = list[Row](), list[list[str]](), list[dict[str, Any]]()
    torch.manual_seed(0)
    example = torch.randn(batch, 3, size, size)
    for name, (build, options) in networks.items():
        for engine in engines:
            for speed in speeds:
                said, table_says, got = _ask(build(), example, speed, engine, options)
                fact = {"network": name, "engine": engine, "asked": speed, "got": got, "table": table_says}
                facts.append({**fact, "said": said})
                if got is None:
                    lines.append([name, engine, f"{speed:g}x", "", "", said])
                    continue
                rows.append(Row(f"{name}, {engine}, {speed:g}x", [got / speed] * 3, at_least=0.9))
                close = "yes" if abs(got / speed - 1) <= 0.1 else "no"
                lines.append([name, engine, f"{speed:g}x", f"{table_says:.2f}x", f"{got:.2f}x", close])
    about = (
        f"{command('time_targets')}. One thread, batch {batch}, images of {size} by {size}, random weights, "
        "`Channels(example, faster=..., engine=...)`; the last column says whether it is within 10 %."
    )
    own = table(["network", "engine", "asked", "by the table", "got", "within 10 %"], lines)
    return Part("A target in time", about, rows, {"rows": facts}, own)


def _ask(
    model: nn.Module, example: torch.Tensor, speed: float, engine: Any, options: dict[str, Any]
) -> tuple[str, float, float | None]:
    """What a pruner says, what its table says, and what is measured; no measurement where it is an error."""
    structure = fadeout.Channels(example, faster=speed, engine=engine, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with threads(1), quietly():
        try:
            pruner: Any = fadeout.SelectiveWeightDecay(model, optimizer, steps=1, structure=structure)
        except ValueError as error:
            return str(error).rpartition(", ")[2].replace("times as fast", "times at most"), 0.0, None
        pruner.masks()
        bound = pruner._bound
        before, after = time_removal(bound.cost.network, bound._alive, engine, structure.couple)
        return "", bound.cost.total / bound.cost.left(bound._alive), before / after
