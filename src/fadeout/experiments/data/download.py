"""Data sets from their publishers: whole and checked, or not at all."""

import gzip
import os
import shutil
import tarfile
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fadeout._checks import extra
from fadeout.experiments.data.source import Source, find, mismatch, search_directories

WAITS = (1, 2, 5)  # seconds before each further attempt


class DownloadError(Exception):
    """A file that could not be had, and why; ``final`` if it would be the same a moment later."""

    def __init__(self, problem: str, *, final: bool = False):
        super().__init__(problem)
        self.final = final


def obtain(source: Source, directory: str | os.PathLike[str] | None = None) -> Path:
    """The folder of a data set; if it is nowhere yet, it is downloaded and moved into place in one go.

    An archive that is in the directory already is taken instead of a download. Files that are in the folder
    stay as they are; only what is missing is added. What was downloaded and turns out to be wrong is deleted,
    so that the next attempt downloads it anew.
    """
    if found := find(source, directory):
        return found
    target = search_directories(directory)[0]
    folder = target / source.folder
    staging = target / f".{source.name}.download"  # always the same: an interrupted download goes on
    try:
        if not source.urls and not (source.archive and (target / source.archive[0]).exists()):
            raise DownloadError(source.note)
        target.mkdir(parents=True, exist_ok=True)
        with _alone(target):
            if missing := source.missing(folder):  # another process may have brought it meanwhile
                complete = _download(source, target, staging)
                folder.parent.mkdir(parents=True, exist_ok=True)
                if not folder.exists():
                    complete.replace(folder)
                else:
                    for name in missing:
                        (complete / name).replace(folder / name)
                shutil.rmtree(staging, ignore_errors=True)
    except DownloadError as error:
        with suppress(OSError):  # what has come already stays, for the next attempt
            staging.rmdir()
        why = f"could not be downloaded ({error}): " if source.urls else "cannot be downloaded: "
        note = f"{source.note}; " if source.note else ""
        archive = f", or {source.archive[0]} in {target}" if source.archive else ""
        raise ValueError(
            f"{source.name} is not here, and {why}{note}place {', '.join(source.missing(folder))} in {folder}"
            f"{archive}; or set FADEOUT_DATA to (or pass as --data-dir) the directory that holds "
            f"{source.folder}"
        ) from error
    except OSError as error:
        raise ValueError(
            f"{source.name} cannot be put in {target} ({error}): name another directory (--data-dir, "
            "FADEOUT_DATA)"
        ) from error
    return folder


def _download(source: Source, target: Path, staging: Path) -> Path:
    """A folder with all that is missing; what is wrong is deleted, the user's own archive aside."""
    staging.mkdir(exist_ok=True)
    if source.archive is None:
        for name in source.missing(target / source.folder):
            _fetch_any(source, name, staging / name, source.files[name])
        return staging
    name, checksum = source.archive
    archive, fault = target / name, ValueError
    if not archive.exists():
        archive, fault = staging / name, DownloadError
        _fetch_any(source, name, archive, checksum)
    if problem := mismatch(archive, checksum) or _unpack(source, archive, staging / "unpacked"):
        shutil.rmtree(staging, ignore_errors=True)
        raise fault(problem)
    return staging / "unpacked" / source.folder


def _unpack(source: Source, archive: Path, target: Path) -> str:
    """Unpack an archive into ``target``; what is wrong with it, if anything."""
    folder = target / source.folder
    shutil.rmtree(target, ignore_errors=True)  # of an attempt that did not come to its end
    try:
        with tarfile.open(archive, "r:gz") as content:
            content.extractall(target, filter="data")  # nothing outside the target, no devices
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        return f"{archive} cannot be unpacked ({error})"
    if missing := source.missing(folder):
        return f"{archive} lacks {', '.join(missing)} in {source.folder}"
    problems = (mismatch(folder / name, checksum) for name, checksum in source.files.items())
    return next(filter(None, problems), "")


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """One process at a time, where the system can see to it: others wait, and find the data there."""
    with ExitStack() as opened:
        with suppress(ImportError, OSError):  # a system, or a file system, without locks
            import fcntl

            handle = os.open(directory, os.O_RDONLY)
            opened.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


# One file over HTTP ---------------------------------------------------------------------------------------


def _fetch_any(source: Source, name: str, path: Path, checksum: str) -> None:
    if path.exists() and not mismatch(path, checksum):  # of an earlier attempt
        return
    problems = []
    for url in source.urls:
        try:
            return fetch(url + name, path, checksum)
        except DownloadError as error:
            problems.append(error)
    raise DownloadError("; ".join(map(str, problems))) from problems[0]


def fetch(url: str, path: Path, checksum: str) -> None:
    """Download a file to ``path``, where it appears only when it is whole and its checksum is right.

    What has come before an interruption stays beside it (``.part``), and the next attempt, also that of a
    later process, goes on from there.

    Args:
        checksum: as ``"md5:..."``; an empty one is not compared.
    """
    part = path.with_name(f"{path.name}.part")
    resumed = part.exists()
    for wait in (*WAITS, None):
        try:
            _append(url, part)
            break
        except DownloadError as error:
            if error.final or wait is None:
                if not part.stat().st_size:
                    part.unlink()
                raise
        time.sleep(wait)
    problem = mismatch(part, checksum)
    if not problem:
        part.replace(path)
        return
    part.unlink()
    if not resumed:
        raise DownloadError(f"{url}: {problem}")
    fetch(url, path, checksum)  # what an earlier attempt left was of another file


def _append(url: str, part: Path) -> None:
    """Add to ``part`` what it lacks of a file."""
    with extra("experiments"):
        import requests
        from pooch import HTTPDownloader
        from tqdm import tqdm
    have = part.stat().st_size if part.exists() else 0
    # identity: a server may otherwise unpack a .gz on the way, or count other bytes than those of the file
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})

    def begin(response: Any, **_: object) -> None:
        opened.callback(response.close)
        status, span = response.status_code, response.headers.get("Content-Range", "")
        if status == 416 or (status in (200, 206) and not span.startswith(f"bytes {have}-")):
            file.truncate(0)  # too long to be of this file; or the server sends everything

    try:
        with ExitStack() as opened:
            file = opened.enter_context(part.open("ab"))
            bar: Any = tqdm(total=1, unit="B", unit_scale=True, desc=part.stem, disable=None)
            opened.enter_context(bar)  # pooch sets its total
            HTTPDownloader(bar, 1 << 16, headers=headers, hooks={"response": begin})(url, file, None)
    except requests.HTTPError as error:
        answer: Any = error.response
        final = answer.status_code < 500 and answer.status_code not in (408, 416, 429)
        raise DownloadError(f"{url}: {answer.status_code} {answer.reason}", final=final) from error
    except requests.exceptions.ChunkedEncodingError as error:
        raise DownloadError(f"{url}: the connection broke off") from error
    except requests.RequestException as error:
        raise DownloadError(f"{url}: no connection to {urlsplit(url).hostname}") from error
