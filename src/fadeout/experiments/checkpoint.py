"""The state of a run on disk: its checkpoint, and the metrics, which reach no further than the checkpoint."""

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from fadeout._files import write_atomically
from fadeout.experiments.run import Run
from fadeout.methods.registry import OPTIONS


def write_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Write a run's state, whole or not at all."""
    try:
        write_atomically(folder / "checkpoint", lambda path: torch.save(state, path))
    except (OSError, RuntimeError) as error:  # torch says the latter where a disk is full
        raise OSError(
            f"no checkpoint could be written to {folder} ({error}); the one before is intact: "
            "make room, and the same command goes on"
        ) from error


def read_checkpoint(folder: Path, device: str = "cpu") -> dict[str, Any] | None:
    """The last state of a run, or None if there is none."""
    path = folder / "checkpoint"
    if not path.exists():
        return None
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        raise ValueError(
            f"{path} cannot be read ({error}): remove it to begin the run anew, or restore a copy"
        ) from error


def share_training(run: Run, done: Run, results: str | os.PathLike[str]) -> bool:
    """Let a run begin where the training of a finished run ended, if its own would be the same.

    So it is for runs that differ in method and target only, if nothing acts during the first phase of either.

    Returns:
        whether it is so, and the run is still to begin.
    """
    free = {"method", "sparsity", *OPTIONS}
    names = [field.name for field in fields(Run) if field.name not in free]
    (first, *_), (other, *_) = run.phases(), done.phases()
    alike = all(getattr(run, name) == getattr(done, name) for name in names)
    if not alike or run.soft or first != other or first.pruner is not None:
        return False
    folder, source = Path(results) / run.hash, Path(results) / done.hash
    state = read_checkpoint(source)
    if state is None or (folder / "checkpoint").exists() or state["epoch"] != first.epochs:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    metrics = (source / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(metrics)
    write_checkpoint(folder, {**state, "phase": 0, "figures": {}, "metrics": len(metrics)})
    return True


def append_metrics(folder: Path, line: dict[str, Any]) -> None:
    """Add a line to the metrics, safely on disk, since a checkpoint says how long the file is."""
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def metrics_length(folder: Path) -> int:
    """The bytes of the metrics."""
    path = folder / "metrics.jsonl"
    return path.stat().st_size if path.exists() else 0


def cut_metrics(folder: Path, length: int) -> None:
    """Forget what was measured after the checkpoint: it will be measured again."""
    path = folder / "metrics.jsonl"
    if path.exists():
        os.truncate(path, length)
