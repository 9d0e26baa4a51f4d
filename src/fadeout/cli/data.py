"""What ``fadeout data`` does."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import tyro

from fadeout._checks import known
from fadeout.experiments import data as data_sets
from fadeout.experiments.data.download import obtain
from fadeout.experiments.data.source import Source, find, search_directories


def sources() -> Mapping[str, Source | None]:
    """The sources of all data sets by name; None for those that an installed package carries in itself.

    >>> sources()["cifar10"].folder
    'cifar-10-batches-py'
    """
    loaders = {name: getattr(data_sets, name) for name in data_sets.__all__}
    return {
        name: getattr(sys.modules[loader.__module__], name.upper(), None)
        for name, loader in loaders.items()
        if not isinstance(loader, type)
    }


def data(
    get: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[get NAME ...]", help_behavior_hint="")] = (),
    /,
    *,
    data_dir: str | None = None,
) -> None:
    """List the data sets: where each is, or how to get it. "fadeout data get NAME" downloads one.

    Args:
        get: nothing, or the word get and the names of data sets.
        data_dir: where to look first, and to put them; then the environment's FADEOUT_DATA, then a cache.
    """
    if not get:
        show(data_dir)
    elif get[0] != "get" or len(get) == 1:
        raise ValueError(f"fadeout data, or fadeout data get NAME; got {' '.join(get)!r}")
    for name in get[1:]:
        fetch(name, data_dir)


def show(data_dir: str | None = None) -> None:
    """Print where each data set is and how large it is, or how to get it."""
    print(f"looked for in {', then '.join(map(str, search_directories(data_dir)))}")
    width = max(map(len, sources()))
    for name, source in sources().items():
        print(f"{name:{width}}  {_state(source, data_dir)}")


def fetch(name: str, data_dir: str | None = None) -> None:
    """Download a data set, unless it is there."""
    known("data set", name, sources())
    source = sources()[name]
    if source is not None:
        source.verify(obtain(source, data_dir))
    print(f"{name}: {_state(source, data_dir)}")


def _state(source: Source | None, data_dir: str | None) -> str:
    if source is None:
        return "comes with an installed package"
    if folder := find(source, data_dir):
        try:
            source.verify(folder)
        except ValueError as error:
            return f"damaged: {error}"
        return f"{_size(source, folder)} in {folder}"
    how = f"fadeout data get {source.name}" if source.urls else source.note
    for folder in (path / source.folder for path in search_directories(data_dir)):
        missing = source.missing(folder)
        if len(missing) < len(source.files):
            return f"incomplete: {folder} lacks {', '.join(missing)}; {how}"
    return f"not here; {how}"


def _size(source: Source, folder: Path) -> str:
    """The bytes of files; of directories, whose files may be a million, how much is in each."""
    paths = [folder / name for name in source.files]
    if all(path.is_file() for path in paths):
        return f"{sum(path.stat().st_size for path in paths) / 1e6:.1f} MB"
    return ", ".join(f"{sum(1 for _ in path.iterdir())} classes in {path.name}" for path in paths)
