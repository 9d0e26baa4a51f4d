"""Checksums of files, and the directories where data sets are looked for."""

import hashlib
from pathlib import Path

import pytest

from fadeout.experiments.data.source import Source, find, mismatch, search_directories

CONTENT = b"the publisher's"
TOY = Source("toy", "toy-data", {"a": f"md5:{hashlib.md5(CONTENT).hexdigest()}", "b": ""})


def placed(place: Path, *names: str) -> Path:
    folder = place / TOY.folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(CONTENT)
    return folder


def test_an_altered_file_is_named_with_both_checksums_and_left_in_place(tmp_path):
    folder = placed(tmp_path, "a", "b")
    assert TOY.read(folder, "a") == CONTENT
    TOY.verify(folder)
    (folder / "a").write_bytes(b"altered")
    (folder / "b").write_bytes(b"altered")  # it has no checksum
    expected, found = hashlib.md5(CONTENT).hexdigest(), hashlib.md5(b"altered").hexdigest()
    for attempt in (lambda: TOY.read(folder, "a"), lambda: TOY.verify(folder)):
        with pytest.raises(
            ValueError, match=rf"{folder / 'a'} .* md5 is {found}, expected {expected}\. It is left"
        ):
            attempt()
    assert (folder / "a").read_bytes() == b"altered"
    assert TOY.read(folder, "b") == b"altered"


def test_other_checksums_than_md5(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    assert mismatch(path, f"sha256:{hashlib.sha256(CONTENT).hexdigest()}") == ""
    assert "sha256 is" in mismatch(path, "sha256:00")


def test_directories_are_the_users_then_the_environments_then_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FADEOUT_DATA", raising=False)
    cache = tmp_path / "cache" / "fadeout"
    assert search_directories() == [cache]
    monkeypatch.setenv("FADEOUT_DATA", str(tmp_path / "env"))
    assert search_directories() == [tmp_path / "env", cache]
    assert search_directories(tmp_path / "mine") == [tmp_path / "mine", tmp_path / "env", cache]
    assert search_directories(tmp_path / "env") == [tmp_path / "env", cache]
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert search_directories()[-1] == Path.home() / ".cache" / "fadeout"
    assert search_directories("~/data")[0] == Path.home() / "data"


def test_the_first_complete_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FADEOUT_DATA", str(tmp_path / "env"))
    mine = tmp_path / "mine"
    assert find(TOY, mine) is None
    in_cache = placed(tmp_path / "cache" / "fadeout", "a", "b")
    assert find(TOY, mine) == in_cache
    in_environment = placed(tmp_path / "env", "a", "b")
    assert find(TOY, mine) == in_environment
    placed(mine, "a")
    assert TOY.missing(mine / TOY.folder) == ["b"]
    assert find(TOY, mine) == in_environment
    placed(mine, "b")
    assert find(TOY, mine) == mine / TOY.folder
