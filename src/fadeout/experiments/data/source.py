"""Where a data set comes from, and where it is looked for on this machine."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fadeout._checks import extra


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

    def read(self, folder: Path, name: str) -> bytes:
        """The content of a file, whose checksum is right; a ValueError says if it is not."""
        content = (folder / name).read_bytes()
        _raise_if(mismatch(folder / name, self.files[name], content))
        return content

    def verify(self, folder: Path) -> None:
        """Raise a ValueError that names the first file in ``folder`` whose checksum is wrong."""
        for name, checksum in self.files.items():
            if (folder / name).exists():
                _raise_if(mismatch(folder / name, checksum))


def mismatch(path: Path, checksum: str, content: bytes | None = None) -> str:
    """How a file differs from what its publisher handed out; empty if it does not.

    Args:
        path: of the file.
        checksum: the publisher's, as ``"md5:..."``; an empty one is not compared.
        content: the file's, if it is read already.
    """
    algorithm, _, expected = checksum.partition(":")
    if not checksum:
        return ""
    if content is not None:
        found = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    else:
        with extra("experiments"):
            import pooch
        found = pooch.file_hash(str(path), algorithm)
    problem = f"{path} is not the publisher's file: its {algorithm} is {found}, expected {expected}"
    return "" if found == expected else problem


def _raise_if(problem: str) -> None:
    if problem:
        raise ValueError(
            f"{problem}. It is left in place; move it away, and the right one can be downloaded or placed"
        )


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
