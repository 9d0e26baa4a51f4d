"""Records are read from the files of sweeps, and damaged ones are named."""

import json

import pytest
from support.reports import record, write_lines

from fadeout.experiments.report.records import read


def write_run(folder, one):
    (folder / one["hash"]).mkdir()
    (folder / one["hash"] / "result.json").write_text(json.dumps(one))


def test_files_are_experiments_and_folders_are_runs(tmp_path):
    a, b, c = (record(80.0, seed=seed) for seed in range(3))
    write_lines(tmp_path / "cora.jsonl", [a, b])
    write_lines(tmp_path / "other.jsonl", [b])
    for one in (a, c):
        write_run(tmp_path, one)
    assert read(tmp_path) == {"cora": [a, b], "other": [b], "runs": [c]}
    assert read(tmp_path / "cora.jsonl") == {"cora": [a, b]}
    (tmp_path / c["hash"] / "metrics.jsonl").write_text('{"epoch": 0}\n')  # beside it, and no records
    assert read(tmp_path / c["hash"]) == read(tmp_path / c["hash"] / "result.json") == {"runs": [c]}


def test_the_same_run_counts_once_and_done_counts_more_than_failed(tmp_path):
    failed, done = record(None), record(80.0)
    assert failed["hash"] == done["hash"]
    write_lines(tmp_path / "a.jsonl", [failed, done])
    write_lines(tmp_path / "b.jsonl", [done, failed])
    write_lines(tmp_path / "c.jsonl", [failed])
    assert read(tmp_path) == {"a": [done], "b": [done], "c": [failed]}
    write_run(tmp_path, done)  # it was run again
    assert read(tmp_path) == {"a": [done], "b": [done], "c": [done]}


DAMAGED = {
    "{": "damaged, .* not JSON",
    "[]": 'no "version"',
    '{"method": "swd"}': 'no "version"',
    json.dumps({**record(1.0), "version": 2}): "its checksum differs",
    json.dumps({**record(1.0), "version": 3}): r"written by a newer fadeout \(version 3",
    json.dumps({**record(1.0), "version": True}): 'no "version"',
    json.dumps({**record(1.0), "hash": 3}): 'no "hash"',
    json.dumps({**record(1.0), "status": "running"}): "its \"status\" is 'running'",
    json.dumps({**record(1.0), "after": None}): 'no accuracy "after"',
    json.dumps({**record(1.0), "after": "high"}): "\"after\" is 'high'",
    json.dumps(record(1.0, sparsity=0.5) | {"run": {"sparsity": "half"}}): "\"sparsity\" is 'half'",
    json.dumps(record(1.0) | {"run": {"epochs": "3"}}): "\"epochs\" is '3'",
}


@pytest.mark.parametrize("line", DAMAGED)
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "cora.jsonl"
    path.write_text(json.dumps(record(80.0)) + "\n\n" + line + "\n")
    with pytest.raises(ValueError, match=DAMAGED[line]) as caught:
        read(tmp_path)
    assert str(caught.value).startswith(f"{path}, line 3: ")


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "cora.jsonl").write_bytes(b'{"version": "\xff"}\n')
    with pytest.raises(ValueError, match="line 1: damaged"):
        read(tmp_path)


def test_nothing_found(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(
        ValueError, match=r"no results in .*: looked for records in \*.jsonl and \*/result.json"
    ):
        read(tmp_path)
    with pytest.raises(ValueError, match="there is no such file or folder"):
        read(tmp_path / "absent")
