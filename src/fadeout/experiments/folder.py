"""The folder of a run: its version, its lock, its files, and under which conditions they came about."""

import contextlib
import fcntl
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import torch

import fadeout
from fadeout._files import write_atomically

VERSION = 1


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
            version = read_json(folder / name).get("version", 0)
            if version > VERSION:
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
        except OSError:
            raise BusyError(f"another process is at {folder}") from None
        yield


def read_json(path: Path) -> dict[str, Any]:
    """Read a file of the folder."""
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} cannot be read ({error}): restore a copy, or remove the folder") from error


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a file of the folder, whole or not at all."""
    write_atomically(path, lambda temporary: temporary.write_text(json.dumps(value, indent=1) + "\n"))
