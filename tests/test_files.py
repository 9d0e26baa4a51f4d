"""Files that are either the old one or the new one, never half; and JSON of others."""

import errno
import os
import stat
import threading

import pytest

from fadeout._files import PatientStream, parse_json, write_atomically


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    target = tmp_path / "masks.bin"
    target.write_text("old")

    def half(path):
        path.write_text("ha")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(target, half)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_new_file_has_the_usual_permissions_and_a_replaced_one_its_own(tmp_path):
    target = tmp_path / "masks.bin"
    before = os.umask(0o027)
    try:
        write_atomically(target, lambda path: path.write_text("old and longer"))
        assert stat.S_IMODE(target.stat().st_mode) == 0o640
        target.chmod(0o604)
        write_atomically(target, lambda path: path.write_text("new"))
    finally:
        os.umask(before)
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o604
    assert list(tmp_path.iterdir()) == [target]


def test_the_umask_of_the_process_is_not_touched(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("other threads would see it"))
    write_atomically(tmp_path / "new", lambda path: path.write_text("new"))


@pytest.mark.parametrize("there", [True, False])
def test_a_symbolic_link_is_written_through(tmp_path, there):
    (tmp_path / "elsewhere").mkdir()
    real, link = tmp_path / "elsewhere" / "real", tmp_path / "link"
    if there:
        real.write_text("old")
    link.symlink_to(real)
    write_atomically(link, lambda path: path.write_text("new"))
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["elsewhere", "link", "real"]


def test_what_is_no_ordinary_file_is_refused_before_anything_is_written(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "round").symlink_to(tmp_path / "round")
    for name in (".", "pipe", "round"):
        with pytest.raises(OSError, match=r"cannot write to|Too many levels"):
            write_atomically(tmp_path / name, lambda path: pytest.fail("it writes"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe", "round"]


def test_many_threads_write_one_file(tmp_path):
    def write(text):
        for _ in range(20):
            write_atomically(tmp_path / "one", lambda path: path.write_text(text))

    threads = [threading.Thread(target=write, args=(letter * 5000,)) for letter in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "one").read_text() in [letter * 5000 for letter in "abcd"]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_patient_stream_raises_in_the_end():
    with open("/dev/full", "wb", buffering=0) as full:
        stream = PatientStream(full)
        assert stream.write(b"abc") == 3
        with pytest.raises(OSError, match="No space left"):
            stream.finish()


@pytest.mark.parametrize("text", ["{", b"\xff\xfe\xfa", "[" * 10**6, '{"a":' * 10**6])
def test_no_json(text):
    with pytest.raises(ValueError):  # noqa: PT011 - each says it in its own words
        parse_json(text)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=rf"masks.bin: there is no folder {tmp_path / 'none'}$"):
        write_atomically(tmp_path / "none" / "masks.bin", lambda path: path.write_text("new"))


def test_a_folder_that_takes_no_files_is_said_of_the_file_that_was_to_be_in_it(tmp_path, monkeypatch):
    def refuse(path, *given):
        raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(PermissionError, match="Permission denied") as error:
            write_atomically(tmp_path / "masks.bin", lambda path: pytest.fail("it writes"))
    assert error.value.filename == str(tmp_path / "masks.bin")
