"""How much faster a compact network really runs, beside how much the operation count says.

    python benchmarks/compact_speed.py

ResNet-20 with 64 maps, random weights and random batch-norm scales, loses 50, 75, 90 and 95 % of its
parameters in whole channels. Each network and the dense one take turns, in PyTorch and in onnxruntime; the
figures are ratios of medians, so that a busy machine slows all alike. Writes results/compact-speed.json and
.md.
"""

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, quartiles, surroundings, take_turns
from rows import table

import fadeout
from fadeout._files import write_atomically
from fadeout.experiments.disk.run_folder import write_json

TARGETS = (0.5, 0.75, 0.9, 0.95)
BATCH, ROUNDS = 16, 15


def pruned(sparsity: float, example: torch.Tensor) -> torch.nn.Module:
    """The network without its lowest channels, physically."""
    torch.manual_seed(0)
    model = fadeout.models.resnet20(width=64)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.weight)
    if sparsity:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        structure = fadeout.Channels(example)
        by_scale = fadeout.criteria.magnitude  # the scales are random: all layers lose about the same share
        pruner = fadeout.SelectiveWeightDecay(
            model, optimizer, sparsity=sparsity, steps=1, structure=structure, criterion=by_scale
        )
        with warnings.catch_warnings():  # nothing has faded: only the shapes matter here
            warnings.simplefilter("ignore")
            pruner.remove()
    return fadeout.compact(model.eval(), example)


def main() -> None:
    import onnxruntime

    example = torch.randn(BATCH, 3, 32, 32)
    networks = {sparsity: pruned(sparsity, example[:1]) for sparsity in (0.0, *TARGETS)}
    calls: dict[str, Callable[[], object]] = {}
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        for sparsity, network in networks.items():
            path = Path(folder) / f"{sparsity}.onnx"
            fadeout.export.onnx(network, path, example)
            session = onnxruntime.InferenceSession(path)
            feed = {session.get_inputs()[0].name: example.numpy()}
            calls[f"pytorch {sparsity}"] = lambda network=network: network(example)
            calls[f"onnxruntime {sparsity}"] = lambda session=session, feed=feed: session.run(None, feed)
        seconds = take_turns(calls, ROUNDS)
    measured = {name: quartiles(values) for name, values in seconds.items()}

    totals = {sparsity: fadeout.measure(network, example[:1]).total for sparsity, network in networks.items()}
    rows = []
    for sparsity in TARGETS:
        row: dict[str, Any] = {
            "removed": 1 - totals[sparsity].parameters / totals[0.0].parameters,
            "operations": totals[0.0].macs / totals[sparsity].macs,
        }
        for engine in ("pytorch", "onnxruntime"):
            dense, small = measured[f"{engine} 0.0"], measured[f"{engine} {sparsity}"]
            row[engine] = dense[1] / small[1]
            row[f"{engine} seconds"] = small
        rows.append(row)
    outcome = {
        "network": "resnet20(width=64)",
        "batch": BATCH,
        "rounds": ROUNDS,
        "dense seconds": {engine: measured[f"{engine} 0.0"] for engine in ("pytorch", "onnxruntime")},
        "rows": rows,
        **surroundings(),
    }
    text = table(
        ["parameters removed", "operations say", "PyTorch", "onnxruntime"],
        [
            [
                f"{row['removed']:.1%}",
                *(f"{row[what]:.1f}x" for what in ("operations", "pytorch", "onnxruntime")),
            ]
            for row in rows
        ],
    )
    write_json(RESULTS / "compact-speed.json", outcome)
    write_atomically(RESULTS / "compact-speed.md", lambda path: path.write_text(text + "\n"))
    print(text)


if __name__ == "__main__":
    main()
