"""Data sets from their publishers: whole and checked, or not at all."""

import os
from pathlib import Path

from fadeout.data.places import find, places
from fadeout.data.source import Source


def obtain(source: Source, directory: str | os.PathLike[str] | None = None) -> Path:
    """The folder of a data set, which is downloaded if it is in none of the places.

    Args:
        source: the data set's.
        directory: the first place to look; see :func:`fadeout.data.places.places`.
    """
    folder = find(source, directory)
    if folder is None:
        raise ValueError(f"{source.name} is in none of {', '.join(map(str, places(directory)))}")
    return folder
