"""Records of runs that never ran, and published values, for the tests of the report."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fadeout.experiments.paper import Value
from fadeout.experiments.report import Section

RUN = {
    "data": "cora",
    "model": "gcn",
    "width": None,
    "structure": "elements",
    "method": "swd",
    "sparsity": 0.9,
    "a_min": None,
    "a_max": None,
    "seed": 0,
    "epochs": 2000,
    "epochs_scale": 1.0,
    "preset": "paper",
    "batch_size": 128,
    "lr": 0.1,
}


def printed(
    method: str, sparsity: float | None, number: float | None, metric: str = "after", **fields: Any
) -> Value:
    """A published value."""
    usual: dict[str, Any] = {"network": "gcn", "width": None, "data": "cora", "structure": "elements"}
    return Value(
        "Figure 5", "cora", method=method, sparsity=sparsity, metric=metric, value=number, **usual | fields
    )


def record(after: float | None = None, before: float | None = None, **run: Any) -> dict[str, Any]:
    """A run that is done, or, without accuracy, one that failed."""
    run = {**RUN, **run}
    common = {
        "version": 1,
        "hash": hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()[:12],
        "run": run,
        "seconds": 12.3,
        "commit": "abc1234",
        "versions": {"torch": "2.13.0", "numpy": "2.4.6"},
        "machine": "x86_64, one thread",
    }
    if after is None:
        error = (
            'Traceback (most recent call last):\n  File "run.py", line 1\nOverflowError: <b>too</b> large\n'
        )
        return {**common, "status": "failed", "error": error}
    left = round(61_706 * (1 - run["sparsity"]))
    return {
        **common,
        "status": "done",
        "before": after if before is None else before,
        "after": after,
        "parameters": 61_706,
        "parameters_left": left,
        "operations": 416_520,
        "operations_left": 9_000,
    }


def curve() -> Section:
    """Five methods over five targets and three seeds, one run of which failed, and the paper's."""
    records = [record(81.0 + 0.3 * seed, method="dense", sparsity=0.0, seed=seed) for seed in range(3)]
    best = {"auto": 81.5, "swd": 80.5, "gmp": 80.9, "han": 80.0, "one_shot": 70.0}
    cost = {"auto": 2.0, "swd": 6.0, "gmp": 3.0, "han": 8.0, "one_shot": 14.0}
    targets = (0.5, 0.9, 0.99, 0.995, 0.999)
    for method, top in best.items():
        for place, sparsity in enumerate(targets):
            for seed in range(3):
                after = top - cost[method] * place * place / 4 + 0.4 * (seed - 1) * (place + 1)
                strengths = {"a_min": 0.1, "a_max": 1e4} if method == "swd" else {}
                lost = {"swd": 1.4, "one_shot": 20.0}.get(method, 0.0) * place / 4
                failed = (method, sparsity, seed) == ("swd", 0.999, 2)
                made = record(
                    None if failed else after,
                    after + lost,
                    method=method,
                    sparsity=sparsity,
                    seed=seed,
                    **strengths,
                )
                records.append(made)
    published = [printed("swd", sparsity, 81.0 - place * 4.5) for place, sparsity in enumerate(targets)]
    published += [
        printed("han", sparsity, 80.5 - place * place * 3) for place, sparsity in enumerate(targets)
    ]
    published += [printed("dense", 0.0, 81.5), printed("liu", 0.9, 77.0), printed("liu", 0.99, 61.0)]
    return Section("cora", "Cora: a graph network", "curve", records, published)


def grid() -> Section:
    """Shortened runs over a grid for two targets; one cell failed, and the paper has a hole."""
    records, published = [], []
    place: dict[str, Any] = {"data": "mnist", "model": "lenet5"}
    short: dict[str, Any] = {"epochs_scale": 0.1, "steps": 100}  # in so many words that they have to wrap
    for sparsity, top in ((0.9, 99.1), (0.99, 97.0)):
        for row, a_min in enumerate((0.1, 1.0, 10.0)):
            for column, a_max in enumerate((1e1, 1e2, 1e3, 1e4)):
                loss = 50.0 / (1 + row + 3 * column) * (1 + 6 * (sparsity - 0.9))
                run = {"sparsity": sparsity, "a_min": a_min, "a_max": a_max, **short, **place}
                failed = (sparsity, row, column) == (0.99, 2, 3)
                records += [
                    record(None if failed else top - loss + 0.3 * seed, top - 0.2, seed=seed, **run)
                    for seed in range(2)
                ]
                value = None if (row, column) == (2, 3) else round(top - 0.7 * loss, 2)
                at: dict[str, Any] = {"a_min": a_min, "a_max": a_max, "data": "mnist", "network": "lenet5"}
                published.append(printed("swd", sparsity, value, **at))
                published.append(printed("swd", sparsity, value and round(-0.7 * loss, 2), "change", **at))
    records.append(record(99.2, method="gmp", **short, **place))
    return Section("grid-mnist", "LeNet-5 on MNIST: the grid", "grid", records, published)


def tabular() -> Section:
    """Channels, on networks of two widths, with operations and two presets."""
    records, published = [], []
    for width, top in ((16, 90.0), (64, 95.0)):
        place: dict[str, Any] = {
            "data": "cifar10",
            "model": "resnet20",
            "width": width,
            "structure": "channels",
        }
        for sparsity in (0.75, 0.9):
            for method in ("liu", "swd", "auto"):
                strengths = {"a_min": 10.0, "a_max": 1e5} if method == "swd" else {}
                for preset in ("paper", "authors") if method == "swd" else ("paper",):
                    after = top - 8 * sparsity - (preset == "authors")
                    run = {"method": method, "sparsity": sparsity, "preset": preset, **strengths, **place}
                    scale = 0.25 if method == "liu" else 1.0
                    records += [
                        record(after + seed, seed=seed, epochs_scale=scale, **run) for seed in range(2)
                    ]
        at: dict[str, Any] = {
            "network": "resnet20",
            "width": width,
            "data": "cifar10",
            "structure": "channels",
        }
        published += [printed("liu", 0.9, top - 9, **at), printed("swd", 0.9, top - 7, **at)]
        published += [
            printed("swd", 0.9, 12.5, "operations", **at),
            printed("rewinding", 0.9, top - 12, **at),
        ]
    return Section("table-cifar", "Channels of ResNet-20 & <others>", "table", records, published)


def section(
    records: Sequence[dict[str, Any]], published: Sequence[Value] = (), kind: str = "table"
) -> Section:
    """An experiment of these records."""
    return Section("one", "A title", kind, records, published)


def write_lines(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """The file of an experiment."""
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
