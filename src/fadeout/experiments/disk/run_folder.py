"""The folder of a run: ``config.json``, ``result.json`` and its lock; its state is in ``checkpoint.py``."""

import contextlib
import fcntl
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy
import torch

import fadeout
from fadeout._files import parse_json, write_text
from fadeout.experiments.disk.checkpoint import read_checkpoint, write_checkpoint
from fadeout.experiments.disk.record_file import VERSION
from fadeout.experiments.run import Run
from fadeout.methods.registry import OPTIONS


class BusyError(ValueError):
    """Another process is at this run."""


class NewerError(ValueError):
    """The folder is of a newer version of fadeout."""


def conditions() -> dict[str, Any]:
    """Where and with what a result came about."""
    return {
        "commit": _commit(),
        "versions": {
            "fadeout": fadeout.__version__,
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        },
        "machine": f"{platform.machine()}, {torch.get_num_threads()} of {os.cpu_count()} threads",
    }


def _commit() -> str | None:
    """The commit of the source; an installed copy may lie in a repository that is not its own."""
    git, here = shutil.which("git"), Path(__file__)

    def ask(*question: str) -> str:
        command = [git or "", "-C", str(here.parent), *question]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    return (git and ask("ls-files", here.name) and ask("describe", "--always", "--dirty")) or None


def check_version(folder: Path) -> None:
    """Raise where a newer version has been at the folder."""
    for name in ("config.json", "result.json"):
        if (folder / name).exists():
            version = _read_json(folder / name).get("version")
            if type(version) is int and version > VERSION:
                raise NewerError(
                    f"{folder / name} is of version {version}, this fadeout reads {VERSION}: update "
                    "fadeout, or choose another folder with --results. Nothing was changed"
                )


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system lets go when the process ends, however it ends."""
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # the latter on some network file systems
            raise BusyError(f"another process is at {folder}") from None
        yield


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a plain file, whole or not at all."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = parse_json(path.read_bytes())
        if not isinstance(value, dict):
            raise ValueError("it is no object")
    except ValueError as error:
        raise ValueError(f"{path} cannot be read ({error}): restore a copy, or remove the folder") from error
    return value


def share_training(run: Run, done: Run, results: str | os.PathLike[str]) -> bool:
    """Let a run begin where the training of a finished run ended, if its own would be the same.

    So it is for runs that differ in method and target only, if nothing acts during the first phase of either.

    Returns:
        whether it is so, and the run is still to begin.
    """
    folder, source = Path(results) / run.hash, Path(results) / done.hash
    names = {field.name for field in fields(Run)} - {"method", "sparsity", *OPTIONS}
    alike = all(getattr(run, name) == getattr(done, name) for name in names)
    first = run.phases()[0]
    if not alike or run.soft or first.pruner is not None or first != done.phases()[0]:
        return False
    state = None if (folder / "checkpoint").exists() else read_checkpoint(source)
    if state is None or state["epoch"] != first.epochs:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / "metrics.jsonl", folder)
    write_checkpoint(folder, {**state, "phase": 0, "figures": {}})
    return True
