"""Run many small trainings, each once: what the scripts in this folder share."""

import argparse
import json
import platform
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent.parent / "results"


def sweep(name: str, runs: list[dict[str, Any]], run: Callable[..., dict[str, Any]]) -> None:
    """Run what ``results/<name>.jsonl`` does not hold yet, append to it, and write ``results/<name>.md``.

    Each line holds the run's own settings, its outcome, commit, version and machine. A sweep that was stopped
    goes on where it was.

    Args:
        name: of the two files.
        runs: settings of the runs, with at least ``task``, ``method``, ``sparsity`` and ``seed``.
        run: called with each, in a process with one thread; returns at least ``before`` and ``after``.
    """
    parser = argparse.ArgumentParser(description=f"Run what results/{name}.jsonl does not hold yet.")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--only", nargs="*", default=[], help="texts that the settings, as JSON, contain")
    arguments = parser.parse_args()
    chosen = [config for config in runs if all(text in json.dumps(config) for text in arguments.only)]

    path = RESULTS / f"{name}.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = [{key: record.get(key) for key in runs[0]} for record in records]
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True)
    conditions = {
        "commit": commit.stdout.strip(),
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, one thread",
    }
    with ProcessPoolExecutor(arguments.jobs) as pool, path.open("a") as file:
        waiting = {pool.submit(_alone, run, config): config for config in chosen if config not in done}
        for finished in as_completed(waiting):
            records.append({**waiting[finished], **finished.result(), **conditions})
            file.write(json.dumps(records[-1]) + "\n")
            file.flush()
            print(records[-1], flush=True)
    (RESULTS / f"{name}.md").write_text(table(records))
    print(table(records))


def table(records: list[dict[str, Any]]) -> str:
    """Mean and spread (standard deviation) over seeds, the best first, as markdown."""
    groups = defaultdict(list)
    for record in records:
        groups[record["task"], record["sparsity"], record["method"]].append(record)
    rows = []
    for (task, sparsity, method), group in groups.items():
        after = [record["after"] for record in group]
        change = max((record["after"] - record["before"] for record in group), key=abs)
        rows.append((task, sparsity, -statistics.mean(after), method, after, change))
    lines = [
        "| task | target | method | after removal | spread | largest change through removal | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for task, sparsity, negative_mean, method, after, change in sorted(rows):
        spread = f"{statistics.stdev(after):.2f}" if len(after) > 1 else ""
        lines.append(
            f"| {task} | {100 * sparsity:g} % | {method} | {-negative_mean:.2f} | {spread} | {change:+.2f} | "
            f"{len(after)} |"
        )
    return "\n".join(lines) + "\n"


def _alone(run: Callable[..., dict[str, Any]], config: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(1)
    return run(**config)
