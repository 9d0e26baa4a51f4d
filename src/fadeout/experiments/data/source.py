"""Where a data set comes from, and where it is looked for on this machine."""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Source:
    """A data set as its publisher hands it out.

    A data set ``name`` has one file of this package: there a function ``name`` loads it, and the constant
    ``NAME`` is its source, which is how ``fadeout data`` knows of it.

    Args:
        name: in the code and on the command line.
        folder: the publisher's, in the directory that holds the data sets.
        files: what must be in the folder, with the checksum of each (``"md5:..."``), empty if there is none.
        urls: addresses below which the files, or the archive, are published; tried in this order.
        archive: name and checksum of the .tar.gz that holds the folder; None if files come one by one.
        note: how one gets it, if it cannot be downloaded.

    >>> Source("toy", "toy-data", {"a.txt": "", "b.txt": ""}).missing(Path("nowhere"))
    ['a.txt', 'b.txt']
    """

    name: str
    folder: str
    files: Mapping[str, str]
    urls: tuple[str, ...] = ()
    archive: tuple[str, str] | None = None
    note: str = ""

    def missing(self, folder: Path) -> list[str]:
        """The names of what is not in ``folder``."""
        return [name for name in self.files if not (folder / name).exists()]

    def verify(self, folder: Path, *names: str) -> None:
        """Raise a ValueError that names the first file (of ``names``, or all) whose checksum is wrong."""
        for path, checksum in ((folder / name, self.files[name]) for name in names or self.files):
            if path.exists() and (problem := mismatch(path, checksum)):
                way_out = "move it away, and the right one can be downloaded or placed"
                raise ValueError(f"{problem}. It is left in place; {way_out}")

    def read(self, folder: Path, name: str, parse: Callable[[bytes], Any] = bytes) -> Any:
        """What ``parse`` makes of a file; a ValueError if its checksum is wrong, or if ``parse`` fails."""
        self.verify(folder, name)
        content = (folder / name).read_bytes()
        try:
            return parse(content)
        except Exception as error:  # a damaged file can raise nearly anything
            raise ValueError(
                f"{folder / name} is damaged ({error}): replace it by the publisher's file"
            ) from error


def mismatch(path: Path, checksum: str) -> str:
    """How a file differs from what its publisher handed out; empty if it does not.

    Args:
        checksum: the publisher's, as ``"md5:..."``; an empty one is not compared.
    """
    algorithm, _, expected = checksum.partition(":")
    if not checksum:
        return ""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    found = digest.hexdigest()
    problem = f"{path} is not the publisher's file: its {algorithm} is {found}, expected {expected}"
    return "" if found == expected else problem


def search_directories(directory: str | os.PathLike[str] | None = None) -> list[Path]:
    """The directories in which data sets are looked for, in this order; a download goes to the first.

    Args:
        directory: the user's (``--data-dir``); after it come the environment's ``FADEOUT_DATA`` and a cache,
            ``~/.cache/fadeout``.

    >>> search_directories("my-data")[0].name, search_directories()[-1].name
    ('my-data', 'fadeout')
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "fadeout"
    named = [Path(given) for given in (directory, os.environ.get("FADEOUT_DATA")) if given]
    return list(dict.fromkeys(path.expanduser() for path in [*named, cache]))


def find(source: Source, directory: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder of a data set in the first directory that has all its files; None if there is none."""
    folders = (path / source.folder for path in search_directories(directory))
    return next((folder for folder in folders if not source.missing(folder)), None)
