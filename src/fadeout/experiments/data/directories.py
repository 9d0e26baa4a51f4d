"""Where data sets are looked for."""

import os
from pathlib import Path

from fadeout.experiments.data.source import Source


def places(directory: str | os.PathLike[str] | None = None) -> list[Path]:
    """The folders in which data sets are looked for, in this order; what is downloaded goes to the first.

    Args:
        directory: the user's (``--data-dir``); after it come the environment's ``FADEOUT_DATA`` and a cache
            folder, ``~/.cache/fadeout``.

    >>> places("my-data")[0].name, places()[-1].name
    ('my-data', 'fadeout')
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "fadeout"
    named = [Path(place) for place in (directory, os.environ.get("FADEOUT_DATA")) if place]
    return list(dict.fromkeys(place.expanduser() for place in [*named, cache]))


def find(source: Source, directory: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder of a data set in the first place that has all its files; None if there is none."""
    folders = (place / source.folder for place in places(directory))
    return next((folder for folder in folders if not source.missing(folder)), None)
