"""Where a data set comes from: its folder, its files with their checksums, and who publishes it."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Source:
    """A data set as its publisher hands it out.

    A data set ``name`` stands in one file of this folder: there a function ``name`` loads it, and the
    constant ``NAME`` is its source, which is how ``fadeout data`` knows of it.

    Args:
        name: in the code and on the command line.
        folder: the publisher's, below the place where data sets lie.
        files: what must lie in the folder, with the checksum of each (``"md5:..."``), empty if there is none.
        urls: addresses below which the files, or the archive, are published; tried in this order.
        archive: name and checksum of the archive that holds the folder; None if files come one by one.
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
        check(folder / name, self.files[name], [content])
        return content

    def verify(self, folder: Path) -> None:
        """Raise a ValueError that names the first file in ``folder`` whose checksum is wrong."""
        for name, checksum in self.files.items():
            if checksum and (folder / name).exists():
                check(folder / name, checksum)


def check(path: Path, checksum: str, content: Iterator[bytes] | list[bytes] | None = None) -> None:
    """Raise a ValueError if a file is not what its publisher handed out; the file stays as it is.

    Args:
        path: of the file.
        checksum: the publisher's, as ``"md5:..."``; an empty one is not checked.
        content: the file's, if it is read already.
    """
    if not checksum:
        return
    algorithm, _, expected = checksum.partition(":")
    digest = hashlib.new(algorithm, usedforsecurity=False)
    for piece in _pieces(path) if content is None else content:
        digest.update(piece)
    if digest.hexdigest() != expected:
        raise ValueError(
            f"{path} is not the publisher's file: its {algorithm} is {digest.hexdigest()}, expected "
            f"{expected}. It is left in place; move it away, and the right one can be downloaded or placed"
        )


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            yield piece
