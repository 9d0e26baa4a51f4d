"""Downloads from a server on this machine: interrupted, resumed, altered, refused."""

import gzip
import hashlib
import threading
from dataclasses import replace

import pytest
from support.file_server import archive, md5, serving

from fadeout.experiments.data import download
from fadeout.experiments.data.download import DownloadError, fetch, obtain
from fadeout.experiments.data.source import Source

CONTENT = bytes(range(256)) * 2000  # half a megabyte: several pieces
FILES = {"a.bin": CONTENT, "b.bin": b"small"}


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(download, "WAITS", (0, 0))
    with serving() as server:
        server.files = dict(FILES)
        yield server


@pytest.fixture
def toy(server):
    """A data set of two files that come one by one."""
    return Source("toy", "toy/raw", {name: md5(c) for name, c in FILES.items()}, (server.url,))


@pytest.fixture
def packed(server, toy):
    """The same in an archive."""
    server.files["toy.tar.gz"] = archive({f"toy-data/{name}": content for name, content in FILES.items()})
    return replace(toy, folder="toy-data", archive=("toy.tar.gz", md5(server.files["toy.tar.gz"])))


def test_a_file_comes_whole(server, tmp_path):
    fetch(f"{server.url}a.bin", tmp_path / "a.bin", md5(CONTENT))
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_an_interrupted_file_goes_on_where_it_stopped(server, tmp_path):
    server.cuts = [200_000, 100_000]
    fetch(f"{server.url}a.bin", tmp_path / "a.bin", md5(CONTENT))
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    spans = [span for _, span in server.requests]
    assert spans[0] is None
    second, third = (int(span.removeprefix("bytes=").rstrip("-")) for span in spans[1:])
    assert 0 < second <= 200_000 < third <= 300_000


def test_a_later_process_goes_on_too(server, tmp_path):
    server.cuts = [100_000, 1000, 1000]  # as many as there are attempts
    with pytest.raises(DownloadError, match=r"a\.bin: the connection broke off"):
        fetch(f"{server.url}a.bin", tmp_path / "a.bin", md5(CONTENT))
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin.part"]
    server.requests.clear()
    fetch(f"{server.url}a.bin", tmp_path / "a.bin", md5(CONTENT))
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert len(server.requests) == 1
    assert server.requests[0][1] is not None


def test_an_interrupted_file_goes_on_where_it_was_moved_to(server, tmp_path):
    server.cuts, server.moved = [200_000], {"old.bin": "a.bin"}
    fetch(f"{server.url}old.bin", tmp_path / "a.bin", md5(CONTENT))
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert [name for name, _ in server.requests] == ["old.bin", "a.bin"] * 2
    assert server.requests[-1][1] is not None


def test_a_server_that_cannot_go_on_sends_everything(server, tmp_path):
    server.ranges, server.cuts = False, [200_000]
    fetch(f"{server.url}a.bin", tmp_path / "a.bin", md5(CONTENT))
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


@pytest.mark.parametrize(
    "left", [CONTENT, CONTENT + b"more", b"another file", b"x" * len(CONTENT)],
    ids=["whole", "too long", "of another file", "as long"],
)  # fmt: skip
def test_whatever_an_earlier_attempt_left_the_right_file_comes(server, tmp_path, left):
    (tmp_path / "a.bin.part").write_bytes(left)
    fetch(f"{server.url}a.bin", tmp_path / "a.bin", md5(CONTENT))
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_a_wrong_checksum_is_told_and_nothing_is_there(server, toy, tmp_path):
    server.files["b.bin"] = b"altered"
    expected, found = (hashlib.md5(content).hexdigest() for content in (b"small", b"altered"))
    with pytest.raises(
        ValueError, match=rf"b\.bin.* md5 is {found}, expected {expected}.*place a\.bin, b\.bin in"
    ):
        obtain(toy, tmp_path)
    assert not (tmp_path / "toy").exists()


def test_a_busy_server_is_asked_again_and_one_without_the_file_is_not(server, tmp_path):
    server.errors = [503, 429]
    fetch(f"{server.url}b.bin", tmp_path / "b.bin", md5(b"small"))
    assert len(server.requests) == 3
    server.requests.clear()
    with pytest.raises(DownloadError, match=r"c\.bin: 404 Not Found"):
        fetch(f"{server.url}c.bin", tmp_path / "c.bin", md5(b""))
    assert len(server.requests) == 1
    server.errors = [503] * 3
    with pytest.raises(DownloadError, match="503 Service Unavailable"):
        fetch(f"{server.url}b.bin", tmp_path / "c.bin", md5(b""))
    assert not (tmp_path / "c.bin").exists()


def test_a_data_set_comes_file_by_file(server, toy, tmp_path, monkeypatch):
    monkeypatch.setenv("FADEOUT_DATA", str(tmp_path / "data"))
    folder = obtain(toy)
    assert folder == tmp_path / "data" / "toy" / "raw"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["toy"]  # no traces
    server.requests.clear()
    assert obtain(toy) == folder
    assert not server.requests


def test_a_data_set_is_never_half_there_and_goes_on(server, toy, tmp_path):
    del server.files["b.bin"]
    with pytest.raises(ValueError, match=r"toy is not here, and could not be downloaded \(.*b\.bin: 404"):
        obtain(toy, tmp_path)
    assert not (tmp_path / "toy").exists()
    server.files["b.bin"] = b"small"
    server.requests.clear()
    obtain(toy, tmp_path)
    assert [name for name, _ in server.requests] == ["b.bin"]


def test_files_that_are_there_stay_as_they_are(server, toy, packed, tmp_path):
    for source in (toy, packed):
        folder = tmp_path / source.folder
        folder.mkdir(parents=True)
        (folder / "a.bin").write_bytes(b"the user's")
        obtain(source, tmp_path)
        assert (folder / "a.bin").read_bytes() == b"the user's"
        assert (folder / "b.bin").read_bytes() == b"small"
        with pytest.raises(ValueError, match="left in place"):
            source.read(folder, "a.bin")


def test_an_archive_is_unpacked_and_gone(packed, tmp_path):
    folder = obtain(packed, tmp_path)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["toy-data"]


def test_an_archive_that_the_user_placed_is_taken_and_kept(server, packed, tmp_path):
    placed = tmp_path / "toy.tar.gz"
    placed.write_bytes(b"altered")
    with pytest.raises(ValueError, match=rf"{placed} is not the publisher's file"):
        obtain(packed, tmp_path)
    assert placed.read_bytes() == b"altered"
    placed.write_bytes(server.files["toy.tar.gz"])
    obtain(replace(packed, urls=()), tmp_path)
    assert placed.exists()
    assert (tmp_path / "toy-data" / "a.bin").read_bytes() == CONTENT
    assert not server.requests


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (archive({"toy-data/a.bin": CONTENT, "../outside": b"x"}), "cannot be unpacked"),
        (archive({"toy-data/a.bin": CONTENT}), r"lacks b\.bin in toy-data"),
        (archive({"toy-data/a.bin": CONTENT, "toy-data/b.bin": b"altered"}), "not the publisher's file"),
        (archive({"toy-data/a.bin": CONTENT})[:-500], "cannot be unpacked"),
        (gzip.compress(gzip.decompress(archive({"toy-data/a.bin": CONTENT}))[:9000]) + b"x", "cannot be unp"),
        (b"<html>log in to the network</html>", "cannot be unpacked"),
        (b"", "cannot be unpacked"),
    ],
    ids=["outside", "incomplete", "altered", "cut off", "damaged", "captive portal", "empty"],
)
@pytest.mark.parametrize("checksum", [md5, lambda _: ""], ids=["as announced", "no checksum"])
def test_a_bad_archive_leaves_nothing_and_is_not_taken_again(
    server, packed, tmp_path, content, message, checksum
):
    right, server.files["toy.tar.gz"] = server.files["toy.tar.gz"], content
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            obtain(replace(packed, archive=("toy.tar.gz", checksum(content))), tmp_path / "data")
        assert not list((tmp_path / "data").iterdir())
    assert not list(tmp_path.rglob("outside"))
    server.files["toy.tar.gz"] = right
    folder = obtain(replace(packed, archive=("toy.tar.gz", checksum(right))), tmp_path / "data")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert len(server.requests) == 3


def test_without_network_it_says_what_to_place_where(toy, packed, tmp_path, monkeypatch):
    nowhere = ("http://127.0.0.1:9/",)  # the port of "discard", where nobody listens
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("FADEOUT_DATA", raising=False)
    cache = tmp_path / "fadeout"
    message = (
        rf"no connection to 127\.0\.0\.1\): place a\.bin, b\.bin in {cache}/toy/raw; or set FADEOUT_DATA"
    )
    with pytest.raises(ValueError, match=message):
        obtain(replace(toy, urls=nowhere))
    with pytest.raises(ValueError, match=rf"in {cache}/toy-data, or toy\.tar\.gz in {cache}; or set"):
        obtain(replace(packed, urls=nowhere))
    assert not list(cache.iterdir())


def test_the_next_address_is_tried(server, toy, tmp_path):
    obtain(replace(toy, urls=(f"{server.url}old/", server.url)), tmp_path)
    assert server.requests[0][0] == "old/a.bin"


def test_what_nobody_publishes_says_how_to_get_it(tmp_path):
    source = Source("toy", "toy", {"train": ""}, note="ask the authors")
    with pytest.raises(
        ValueError, match=rf"cannot be downloaded: ask the authors; place train in {tmp_path}/toy"
    ):
        obtain(source, tmp_path)


def test_a_directory_that_cannot_be_written_is_named(toy, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"toy cannot be put in .*file/data \(.*name another directory"):
        obtain(toy, tmp_path / "file" / "data")


def test_two_at_once_download_once(server, toy, tmp_path):
    threads = [threading.Thread(target=obtain, args=(toy, tmp_path)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(name for name, _ in server.requests) == ["a.bin", "b.bin"]
