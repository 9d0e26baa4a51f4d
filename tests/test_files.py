"""Files that are either the old one or the new one, never half."""

import os
import stat

import pytest

from fadeout._files import write_atomically


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


def test_the_new_file_replaces_the_old_one_and_others_may_read_it(tmp_path):
    target = tmp_path / "masks.bin"
    target.write_text("old and longer")
    before = os.umask(0o022)
    try:
        write_atomically(target, lambda path: path.write_text("new"))
    finally:
        os.umask(before)
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert list(tmp_path.iterdir()) == [target]
