"""What is kept of a finished run: accuracies, sizes, and the conditions under which they came about."""

import copy
import os
import sys
import warnings
from typing import Any

from torch import nn

from fadeout._tables import printable
from fadeout.compaction.compact import compact
from fadeout.engines import time_networks
from fadeout.experiments.build import timed_example
from fadeout.experiments.disk.record_file import VERSION
from fadeout.experiments.disk.run_folder import conditions
from fadeout.experiments.report.formatting import last_line
from fadeout.experiments.run import Run
from fadeout.graph.example import Example
from fadeout.measure import measure


def make_record(
    run: Run, model: nn.Module, state: dict[str, Any], example: Any, figures: dict[str, Any], seconds: float
) -> dict[str, Any]:
    """The record of a finished run, as ``result.json`` holds it.

    Args:
        run: what was done.
        model: the network as the run initialises it.
        state: that of the finished network.
        example: an input of it.
        figures: its accuracies in the end, and before and after the last removal if there was one; what part
            of the final kept set was kept at each progress.
        seconds: how long it took.
    """
    after, top5 = figures["after"], figures["top5"]
    dense, start = measure(model, example).total, copy.deepcopy(model)
    model.load_state_dict(state)
    with warnings.catch_warnings():  # of single weights, whole rows of which may be zero
        warnings.filterwarnings("ignore", "compact.. keeps")
        small = measure(compact(model, example, couple=run.couple), example).total
    return {
        **_head(run, "done"),
        "before": round(figures.get("before", after), 4),
        "removed": round(figures.get("removed", after), 4),
        "after": round(after, 4),
        "top5_before": round(figures.get("top5_before", top5), 4),
        "top5": round(top5, 4),
        "parameters": dense.parameters,
        "parameters_left": small.parameters if run.structure == "channels" else small.nonzero,
        "operations": dense.operations_output,
        "operations_left": small.operations_output,
        "seconds": round(seconds, 2),
        **(_milliseconds(run, start, model, example) if run.of == "time" else {}),
        **({"overlap": figures["overlap"]} if "overlap" in figures else {}),
        **conditions(),
    }


def _milliseconds(run: Run, start: nn.Module, finished: nn.Module, example: Any) -> dict[str, float]:
    """How long both networks take, in turns, where the finished one was to be fast."""
    timed = timed_example(run, example)
    networks = {
        part: compact(network, timed, couple=run.couple, for_inference=True)
        for part, network in (("", start), ("_left", finished))
    }
    seconds = time_networks(networks, Example.of(timed), run.engine)
    return {f"milliseconds{part}": round(1000 * each, 4) for part, each in seconds.items()}


def make_failure(run: Run, error: str) -> dict[str, Any]:
    """The record of a run that failed; its traceback names modules, not the folders of this machine."""
    for folder in sorted(filter(None, sys.path), key=len, reverse=True):
        error = error.replace(f'"{folder}{os.sep}', '"')
    return {**_head(run, "failed"), "error": error, **conditions()}


def _head(run: Run, status: str) -> dict[str, Any]:
    return {"version": VERSION, "hash": run.hash, "status": status, "run": run.to_dict()}


def describe_record(record: dict[str, Any]) -> str:
    """A record in a line: the run, and what came of it."""
    name = str(Run(**record["run"]))
    if record["status"] != "done":
        return f"{name}: {record['status']}: {printable(last_line(record['error']))}"
    through = f", {record['before']:.2f} before and {record['removed']:.2f} after removal"
    left = f"{record['parameters_left'] / record['parameters']:.2%} of the parameters left"
    return f"{name}: {record['after']:.2f} %{through}, {left}, {record['seconds']:.0f} s"
