"""A file over HTTP, which goes on where it was interrupted."""

import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fadeout._checks import extra

WAITS = (1, 2, 5)  # seconds before each further attempt
_TIMEOUT = 30  # seconds without a byte


class DownloadError(Exception):
    """A file that could not be had, and why; ``final`` if it would be the same a moment later."""

    def __init__(self, problem: str, *, final: bool = False):
        super().__init__(problem)
        self.final = final


def fetch(url: str, path: Path, checksum: str) -> None:
    """Download a file to ``path``, where it appears only when it is whole and its checksum is right.

    What has come before an interruption stays beside it (``.part``), and the next attempt, also that of a
    later process, goes on from there.

    Args:
        url: its address.
        path: where it goes.
        checksum: as ``"md5:..."``.
    """
    with extra("experiments"):
        import pooch
    part = path.with_name(f"{path.name}.part")

    def download(url: str, output: Any, *_: object) -> None:
        _complete(url, part)
        part.replace(output)

    # what an earlier attempt left may have been of another file: then once more from the beginning
    for last in (False, True) if part.exists() else (True,):
        try:
            pooch.retrieve(url, checksum, path.name, path.parent, downloader=download)  # pyright: ignore
            return
        except ValueError as error:
            if last:
                raise DownloadError(f"{url}: {error}") from error


def _complete(url: str, part: Path) -> None:
    """Append to ``part`` what is missing, over several attempts."""
    for wait in (*WAITS, None):
        try:
            return _append(url, part)
        except DownloadError as error:
            if error.final or wait is None:
                raise
        time.sleep(wait)


def _append(url: str, part: Path) -> None:
    import requests

    have = part.stat().st_size if part.exists() else 0
    # identity: a server may otherwise unpack a .gz on the way, or count other bytes than those of the file
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
            _write(response, part, have)
    except requests.exceptions.ChunkedEncodingError as error:
        raise DownloadError(f"{url}: the connection broke off") from error
    except requests.RequestException as error:
        raise DownloadError(f"{url}: no connection to {urlsplit(url).hostname}") from error


def _write(response: Any, part: Path, have: int) -> None:
    """Add an answer to the ``have`` bytes in ``part``."""
    from tqdm import tqdm

    status, span = response.status_code, response.headers.get("Content-Range", "")
    if status == 416:  # nothing comes after what is here
        if span.rpartition("/")[2] == str(have):
            return
        part.unlink()
        raise DownloadError(f"{response.url}: what was there of it is too long")
    if status >= 400:
        final = status < 500 and status not in (408, 429)
        raise DownloadError(f"{response.url}: {status} {response.reason}", final=final)
    if status != 206 or not span.startswith(f"bytes {have}-"):
        have = 0  # the server sends everything
    length = response.headers.get("Content-Length")
    total = have + int(length) if length else None
    with (
        part.open("ab" if have else "wb") as file,
        tqdm(total=total, initial=have, unit="B", unit_scale=True, desc=part.stem, disable=None) as bar,
    ):
        for piece in response.iter_content(1 << 16):
            bar.update(file.write(piece))
    if total is not None and part.stat().st_size < total:
        raise DownloadError(f"{response.url}: the connection broke off")
