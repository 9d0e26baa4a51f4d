"""Zeros that are smaller files: bytes of dense and of sparse ONNX.

python benchmarks/speed.py stored_bytes
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from rows import Part, Row, table
from small_networks import command, quietly
from torch import nn

import fadeout
from fadeout.methods import one_shot

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "LeNet-5": (fadeout.models.lenet5, (1, 1, 28, 28)),
    "ResNet-20, 64 maps": (lambda: fadeout.models.resnet20(width=64), (1, 3, 32, 32)),
    "4 pairs of linear layers, 768 to 3,072 and back": (lambda: linear_stack(), (1, 768)),
}
QUICK: dict[str, Any] = {
    "networks": {"linear": (lambda: linear_stack(64, 1), (1, 64))},
    "targets": (0.9,),
}


def linear_stack(width: int = 768, pairs: int = 4) -> nn.Sequential:
    """Linear layers as large as those of BERT."""
    layers = [
        layer
        for _ in range(pairs)
        for layer in (nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    ]
    return nn.Sequential(*layers)


def measure(
    networks: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = NETWORKS,
    targets: tuple[float, ...] = (0.9, 0.95, 0.98),
) -> Part:
    """Export each network both ways; onnxruntime runs both, and their outputs are compared.

    Args:
        networks: by name, what builds them, and the shape of their input.
        targets: fractions of the weights that are zero.
    """
    rows, lines, facts = list[Row](), list[list[str]](), list[dict[str, Any]]()
    for name, (build, shape) in networks.items():
        for target in targets:
            torch.manual_seed(0)
            model, example = build().eval(), torch.randn(shape)
            with quietly():
                one_shot(model, target)
            dense, sparse, saved, difference = _export(model, example)
            facts.append(
                {"network": name, "zeros": target, "dense": dense, "sparse": sparse, "save": saved}
                | {"difference": difference}
            )
            rows.append(Row(f"{name}, {target:.0%}, outputs of the files", [difference] * 3, at_most=0.0))
            sizes = [f"{size / 1e6:.3g} MB" for size in (dense, sparse, saved)]
            lines.append([name, f"{target:.0%}", *sizes, f"{dense / sparse:.1f}x", f"{difference:g}"])
    about = f"{command('stored_bytes')}. Weights of least magnitude are zero; both files run in onnxruntime."
    heads = ["network", "zeros", "ONNX", "sparse ONNX", "fadeout.save", "smaller", "outputs differ by"]
    return Part("Zeros that are smaller files", about, rows, {"rows": facts}, table(heads, lines))


def _export(model: nn.Module, example: torch.Tensor) -> tuple[int, int, int, float]:
    """Bytes of both files and of our own, and the largest difference between what the two give."""
    import onnxruntime

    outputs, sizes = [], []
    with tempfile.TemporaryDirectory() as folder:
        for sparse in (False, True):
            path = Path(folder) / f"{sparse}.onnx"
            fadeout.export.onnx(model, path, example, sparse=sparse)
            session = onnxruntime.InferenceSession(path)
            outputs.append(session.run(None, {session.get_inputs()[0].name: example.numpy()})[0])
            sizes.append(path.stat().st_size)
        fadeout.save(model, Path(folder) / "model.safetensors")
        sizes.append((Path(folder) / "model.safetensors").stat().st_size)
    return sizes[0], sizes[1], sizes[2], float(abs(outputs[0] - outputs[1]).max())
