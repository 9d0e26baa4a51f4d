"""Files that are either the old one or the new one, never half; and JSON of others, read with care."""

import json
import os
import secrets
import stat
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import safetensors
import safetensors.torch
from torch import Tensor


def write_atomically(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then put it in place in one move.

    A symbolic link is followed: what it leads to is replaced, and the link stays. A file that is replaced
    keeps its permissions; those of a new one are the user's usual ones.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     target = Path(folder) / "note.txt"
    ...     write_atomically(target, lambda p: p.write_text("whole"))
    ...     target.read_text()
    'whole'
    """
    path = Path(os.path.realpath(path))
    mode = path.stat().st_mode if path.exists() or path.is_symlink() else None
    if mode is not None and not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "no ordinary file, and would be replaced by one"
        raise OSError(f"cannot write to {path}: it is {kind}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write to {path}: there is no folder {path.parent}")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        # by open() itself, since to ask for the process's umask is to change it, for all threads
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666 if mode is None else 0o600))
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(path)
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(temporary)):  # a full disk names none
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a file of text in one move."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_tensors(path: str | os.PathLike[str], tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file; a full disk is an ``OSError``, as for any other file."""
    try:
        write_atomically(path, lambda file: safetensors.torch.save_file(tensors, file, metadata))
    except safetensors.SafetensorError as error:
        raise OSError(f"{os.fspath(path)} could not be written: {error}") from error


class PatientStream:
    """A file to hand to code in C++, which would abort the process where a write raises.

    What goes wrong is kept for :meth:`finish`, which raises it.

    >>> import io
    >>> file = io.BytesIO()
    >>> stream = PatientStream(file)
    >>> stream.write(b"123456789")
    9
    >>> stream.finish()
    >>> hex(stream.checksum)
    '0xcbf43926'
    """

    def __init__(self, file: IO[bytes]):
        self._file, self._error = file, None
        self.checksum = 0
        """CRC-32 of what was written so far."""

    def write(self, data: bytes) -> int:
        """Write, or remember why not."""
        if self._error is None:
            try:
                self._file.write(data)
            except OSError as error:
                self._error = error
        self.checksum = zlib.crc32(data, self.checksum)
        return len(data)

    def flush(self) -> None:
        """Nothing: :meth:`finish` does."""

    def finish(self) -> None:
        """Raise what went wrong, if anything did."""
        if self._error is not None:
            raise self._error
        self._file.flush()


def parse_json(text: str | bytes) -> Any:
    """Read JSON that may be damaged, or made to do damage: whatever is wrong is a ``ValueError``.

    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: it is nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
