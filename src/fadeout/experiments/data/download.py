"""Data sets from their publishers: whole and checked, or not at all."""

import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fadeout.experiments.data.directories import find, places
from fadeout.experiments.data.http import DownloadError, fetch
from fadeout.experiments.data.source import Source, check


def obtain(source: Source, directory: str | os.PathLike[str] | None = None) -> Path:
    """The folder of a data set, which is downloaded if it is in none of the places.

    Args:
        source: the data set's.
        directory: the first place to look; see :func:`fadeout.experiments.data.directories.places`.
    """
    return find(source, directory) or install(source, places(directory)[0])


def install(source: Source, place: Path) -> Path:
    """Download a data set and put its folder below ``place`` in one move, or say what to place where.

    An archive that lies in ``place`` already is taken instead of a download. Files that are in the folder
    stay as they are; only what is missing is added.

    Args:
        source: the data set's.
        place: where its folder goes.
    """
    folder, archived = place / source.folder, bool(source.archive and (place / source.archive[0]).exists())
    if not source.urls and not archived:
        raise ValueError(f"{source.name} is not here, and cannot be downloaded: {_advice(source, place)}")
    try:
        place.mkdir(parents=True, exist_ok=True)
        with _alone(place):
            if source.missing(folder):  # another process may have brought it meanwhile
                _bring(source, place, folder)
    except DownloadError as error:
        with suppress(OSError):  # what has come already stays, for the next attempt
            _staging(source, place).rmdir()
        raise ValueError(
            f"{source.name} is not here, and could not be downloaded ({error}): {_advice(source, place)}"
        ) from error
    except OSError as error:
        raise ValueError(
            f"{source.name} cannot be put in {place} ({error}): name another place (--data-dir, FADEOUT_DATA)"
        ) from error
    return folder


def _bring(source: Source, place: Path, folder: Path) -> None:
    staging = _staging(source, place)
    staging.mkdir(exist_ok=True)
    if source.archive is None:
        for name in source.missing(folder):
            if not (staging / name).exists():
                _fetch_any(source, name, staging / name, source.files[name])
        complete = staging
    else:
        complete = _unpacked(source, place, staging) / source.folder
    source.verify(complete)
    _move(complete, folder)
    shutil.rmtree(staging, ignore_errors=True)


def _staging(source: Source, place: Path) -> Path:
    """Where a data set is gathered: the same folder at each attempt, so that an interrupted one goes on."""
    return place / f".{source.name}.download"


def _fetch_any(source: Source, name: str, path: Path, checksum: str) -> None:
    problems = []
    for url in source.urls:
        try:
            return fetch(url + name, path, checksum)
        except DownloadError as error:
            problems.append(error)
    raise DownloadError("; ".join(map(str, problems))) from problems[0]


def _unpacked(source: Source, place: Path, staging: Path) -> Path:
    assert source.archive is not None
    name, checksum = source.archive
    archive = place / name
    if archive.exists():
        check(archive, checksum)
    else:
        archive = staging / name
        if not archive.exists():
            _fetch_any(source, name, archive, checksum)
    target = staging / "unpacked"
    shutil.rmtree(target, ignore_errors=True)  # of an attempt that did not come to its end
    try:
        with tarfile.open(archive) as content:
            content.extractall(target, filter="data")  # nothing outside the folder, no devices
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ValueError(f"{archive} cannot be unpacked ({error})") from error
    missing = source.missing(target / source.folder)
    if missing:
        raise ValueError(f"{archive} lacks {', '.join(missing)} in {source.folder}")
    return target


def _move(complete: Path, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not folder.exists():
        complete.replace(folder)
        return
    for path in complete.iterdir():  # a folder that lacked some files gets those
        if not (folder / path.name).exists():
            path.replace(folder / path.name)


def _advice(source: Source, place: Path) -> str:
    folder = place / source.folder
    archive = f", or {source.archive[0]} in {place}" if source.archive else ""
    note = f"{source.note}; " if source.note else ""
    return (
        f"{note}place {', '.join(source.missing(folder))} in {folder}{archive}; "
        f"or set FADEOUT_DATA to (or pass as --data-dir) the directory in which {source.folder} lies"
    )


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """One process at a time, where the system can see to it: others wait, and find the data there."""
    try:
        import fcntl

        handle = os.open(place, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
