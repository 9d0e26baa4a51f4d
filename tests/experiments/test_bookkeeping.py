"""The bookkeeping of an experiment: what is meant, what is done, what is kept."""

import json
import threading

import pytest

from fadeout.experiments.bookkeeping import collect, collected, plan
from fadeout.experiments.disk.record_file import read_records
from fadeout.experiments.run import Run

RUNS = [Run(epochs=1, steps=2, method=method, seed=seed) for method in ("gmp", "auto") for seed in (0, 1)]


def test_records_are_collected_beside_older_ones(tmp_path):
    def record(name, status, **more):
        return {"version": 2, "hash": name, "status": status, "run": {}, "after": 90.0, **more}

    path = collect("cora", [record("a", "failed"), record("b", "done")], tmp_path)
    collect("cora", [record("a", "done"), record("c", "elsewhere")], tmp_path)
    assert list(read_records(path).values()) == [record("a", "done"), record("b", "done")]


def test_several_that_collect_into_one_file_lose_nothing(tmp_path):
    def add(first):
        for number in range(first, first + 10):
            record = {"version": 2, "hash": str(number), "status": "failed", "run": {}, "error": "no"}
            collect("cora", [record], tmp_path)

    threads = [threading.Thread(target=add, args=(10 * one,)) for one in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, collected("cora", tmp_path))) == list(range(60))


def test_conditions_choose_runs(tmp_path):
    assert plan("small", RUNS, tmp_path).runs == RUNS
    assert plan("small", RUNS, tmp_path, ["method=gmp"]).runs == RUNS[:2]
    assert plan("small", RUNS, tmp_path, ["method=auto", "seed=1.0", "soft=False"]).runs == RUNS[3:]
    with pytest.raises(ValueError, match="no run of small meets seed=2; seed is 0 or 1"):
        plan("small", RUNS, tmp_path, ["seed=2"])
    with pytest.raises(ValueError, match="no field 'rouns'; did you mean rounds"):
        plan("small", RUNS, tmp_path, ["rouns=2"])


def test_it_goes_on_from_the_collected_records(tmp_path):
    seen = []
    first = plan("small", RUNS, tmp_path, ["seed=0"])
    assert (len(first.left), first.finished) == (2, 0)
    first.carry_out(lambda number, record: seen.append((number, record["hash"])), jobs=1)
    assert seen == [(1, RUNS[0].hash), (2, RUNS[2].hash)]
    assert list(collected("small", tmp_path)) == [RUNS[0].hash, RUNS[2].hash]
    rest = plan("small", RUNS, tmp_path)
    assert (rest.left, rest.finished) == ([RUNS[1], RUNS[3]], 2)
    records = rest.carry_out(lambda number, record: seen.append((number, record["hash"])), jobs=1)
    assert seen[2:] == [(3, RUNS[1].hash), (4, RUNS[3].hash)]
    assert {record["hash"] for record in records} == collected("small", tmp_path).keys()
    (tmp_path / "small.jsonl").unlink()
    assert plan("small", RUNS, tmp_path).finished == 4  # the folders know, too


def test_what_is_not_done_is_left(tmp_path):
    records = [
        {"version": 2, "hash": RUNS[0].hash, "status": "failed", "run": RUNS[0].to_dict(), "error": "no"},
        {"version": 2, "hash": RUNS[1].hash, "status": "done", "run": RUNS[1].to_dict(), "after": 90.0},
        {"version": 2, "hash": "another", "status": "done", "run": Run(seed=9).to_dict(), "after": 90.0},
    ]
    collect("small", records, tmp_path)
    found = plan("small", RUNS, tmp_path)
    assert found.kept == [json.loads(json.dumps(records[1]))]
    assert found.left == [RUNS[0], *RUNS[2:]]


def test_a_file_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "small.jsonl").write_text('{"task": "digits"}\n')
    with pytest.raises(ValueError, match=r"small\.jsonl, line 1: damaged, not the record of a run"):
        plan("small", RUNS, tmp_path)
    assert (tmp_path / "small.jsonl").read_text() == '{"task": "digits"}\n'
