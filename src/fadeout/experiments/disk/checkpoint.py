"""The state of a run on disk: what ``torch.save`` writes and a line with its checksum, in two generations.

``checkpoint`` is the last one, ``checkpoint.before`` the one before it, for the day that the last one turns
out to be damaged. Each says which run it is of, and how far the metrics reach. Checkpoints of version 0.1
have neither that nor a line at their end; they are read, too.
"""

import json
import os
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch

from fadeout._files import PatientStream, write_atomically

BEFORE = "checkpoint.before"
_LINE = "\nfadeout checkpoint, CRC-32 {:08x}\n"
_LENGTH = len(_LINE.format(0))
_PARTS = {"phase", "epoch", "step", "model", "optimizer", "pruner", "masks", "figures", "losses", "seconds"}


def append_metrics(folder: Path, line: dict[str, Any]) -> None:
    """Add a line to the metrics, safely on disk, since a checkpoint says how long the file is."""
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def write_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Write a run's state, whole or not at all; what was the last one becomes the one before."""
    last, size = folder / "checkpoint", _size(folder / "metrics.jsonl")
    state = {
        **state,
        "run": folder.name,
        "metrics": size,
        "metrics_checksum": _metrics_checksum(folder, size),
    }

    def write(path: Path) -> None:
        with path.open("wb") as file:
            stream = PatientStream(file)
            torch.save(state, stream)  # pyright: ignore[reportArgumentType]  # it needs write() alone
            stream.write(_LINE.format(stream.checksum).encode())
            stream.finish()
        if last.exists():
            last.replace(folder / BEFORE)

    try:
        write_atomically(last, write)
    except (OSError, RuntimeError) as error:
        raise OSError(
            f"no checkpoint could be written to {folder} ({error}); the one before is intact: "
            "make room, and the same command goes on"
        ) from error


def read_checkpoint(folder: Path, device: str = "cpu") -> dict[str, Any] | None:
    """The last state of a run, if any; metrics from after it are forgotten: they will be measured again.

    Where the last one cannot be used, a warning says why, and the one before is taken.
    """
    refused: list[str] = []
    for path in (folder / "checkpoint", folder / BEFORE):
        if not path.exists():
            continue
        try:
            state = _read(path, device)
            _check_fits(state, folder)
        except ValueError as error:
            refused.append(f"{path} cannot be read ({error})")
            continue
        if refused:
            aside = (folder / "checkpoint").replace(folder / "checkpoint.refused")
            warnings.warn(
                f"{refused[0]}: it is kept as {aside.name}, and the run goes on from the checkpoint before "
                f"it, in epoch {state['epoch'] + 1}",
                stacklevel=2,
            )
        break
    else:
        if refused:
            raise ValueError(f"{refused[0]}: restore a copy, or remove the folder to begin the run anew")
        state = None
    if (folder / "metrics.jsonl").exists():
        os.truncate(folder / "metrics.jsonl", state["metrics"] if state else 0)
    return state


def _read(path: Path, device: str) -> dict[str, Any]:
    """What a checkpoint holds; a ``ValueError`` if it is not what was written."""
    checked = _verify(path)
    try:
        if not checked:
            with zipfile.ZipFile(path) as parts:
                if damaged := parts.testzip():
                    raise ValueError(f"its part {damaged} is damaged")
        state = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # a damaged file can raise nearly anything
        raise ValueError(str(error).partition("\n")[0] or type(error).__name__) from error
    if not isinstance(state, dict) or not state.keys() >= _PARTS:
        raise ValueError("it holds something else than the state of a run")
    if "run" in state and not checked:
        raise ValueError("its checksum was altered")
    return state


def _verify(path: Path) -> bool:
    """Whether it has a checksum, which is right; a ``ValueError`` if it is wrong."""
    left, checksum = max(0, _size(path) - _LENGTH), 0
    with path.open("rb") as file:
        while left and (part := file.read(min(left, 2**20))):
            left, checksum = left - len(part), zlib.crc32(part, checksum)
        line = file.read()
    if not line.startswith(_LINE[:20].encode()):
        return False
    if line != _LINE.format(checksum).encode():
        raise ValueError("its checksum differs")
    return True


def _check_fits(state: dict[str, Any], folder: Path) -> None:
    """Raise where the state belongs to another run, or to other metrics."""
    if state.get("run", folder.name) != folder.name:
        raise ValueError(f"it is of another run, {state['run']}")
    size = _size(folder / "metrics.jsonl")
    if size < state["metrics"]:
        raise ValueError(f"metrics.jsonl has {size} bytes, and had {state['metrics']} when it was written")
    found = _metrics_checksum(folder, state["metrics"])
    if state.get("metrics_checksum", found) != found:
        raise ValueError("metrics.jsonl was altered since it was written")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _metrics_checksum(folder: Path, size: int) -> int:
    return zlib.crc32((folder / "metrics.jsonl").read_bytes()[:size]) if size else 0
