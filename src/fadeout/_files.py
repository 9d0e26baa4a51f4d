"""Files that are either the old one or the new one, never half."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then put it in place in one move.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     target = Path(folder) / "note.txt"
    ...     write_atomically(target, lambda p: p.write_text("whole"))
    ...     target.read_text()
    'whole'
    """
    path = Path(path)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(descriptor)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        # mkstemp makes files that only the owner can read; the user's umask decides instead
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
