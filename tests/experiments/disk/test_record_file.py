"""Files of records: with checksums, and a number of how many there are."""

import json
import shutil

import pytest

from fadeout.experiments.disk.record_file import read_record, read_records, write_record, write_records


def record(number, version=2):
    return {"version": version, "hash": str(number), "status": "failed", "run": {}, "error": "é\x1b"}


def test_what_is_written_is_read(tmp_path):
    write_record(tmp_path / "result.json", record(1))
    assert read_record(tmp_path / "result.json") == record(1)
    write_records(tmp_path / "a.jsonl", [record(1), record(2, version=1)])
    assert read_records(tmp_path / "a.jsonl") == {2: record(1), 3: record(2, version=1)}


def test_records_of_the_version_before(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(record(n, version=1)) + "\n" for n in range(3)))
    assert list(read_records(path).values()) == [record(n, version=1) for n in range(3)]


def test_files_can_be_joined_but_none_of_their_lines_lost(tmp_path):
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    write_records(one, [record(1), record(2)])
    write_records(other, [record(3)])
    with one.open("ab") as file, other.open("rb") as more:
        shutil.copyfileobj(more, file)
    assert [found["hash"] for found in read_records(one).values()] == ["1", "2", "3"]
    lines = one.read_text().splitlines(keepends=True)
    for number in range(len(lines)):
        one.write_text("".join(lines[:number] + lines[number + 1 :]))
        with pytest.raises(ValueError, match=r"one.jsonl: damaged, it announces .* records and holds"):
            read_records(one)


@pytest.mark.parametrize("number", ["1", None, True, 1.0, []])
def test_a_number_of_records_that_is_none(tmp_path, number):
    from fadeout.experiments.disk.record_file import seal

    text = seal({"version": 2, "records": number}) + "\n" + seal(record(1)) + "\n"
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(ValueError, match="damaged"):
        read_records(tmp_path / "a.jsonl")
