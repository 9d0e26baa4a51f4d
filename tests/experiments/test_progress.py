"""How far runs are, as their folders tell, and how long the rest takes: worked out by hand."""

import json
import os

import pytest

from fadeout.experiments.disk.record_file import write_record
from fadeout.experiments.execute import Stopped, execute
from fadeout.experiments.progress import Estimate, Progress, look, write_progress
from fadeout.experiments.result import make_failure
from fadeout.experiments.run import Run

RUN, OTHER = Run(epochs=10), Run(epochs=20)
SLOW = Run(epochs=10, model="resnet20", data="cifar10")


def running(run, step, seconds, begun=0.0, heard=None):
    now = {"step": step, "steps": 100, "seconds": seconds}
    return Progress(run, "running", now, begun, begun + seconds if heard is None else heard)


def done(run, seconds, around=0.0):
    record = {"status": "done", "seconds": seconds}
    return Progress(run, "done", {}, 50.0, 50.0 + seconds + around, record=record)


# Folders --------------------------------------------------------------------------------------------------


def put(folder, name, text, when):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    os.utime(folder / name, (when, when))


def state_at(tmp_path, clock, record=None):
    return look(RUN, tmp_path, record, clock).state


def test_states(tmp_path):
    folder = tmp_path / RUN.hash
    assert state_at(tmp_path, 1000.0) == "waiting"
    put(folder, "config.json", "{}", 1000.0)
    assert state_at(tmp_path, 1001.0) == "running"
    put(folder, "progress.json", '{"step": 5, "steps": 100, "seconds": 20.0}', 1030.0)
    put(folder, "metrics.jsonl", '{"epoch": 0, "top1": 50.0}\n{"epoch": 1, "top', 1030.0)
    state = look(RUN, tmp_path, clock=1040.0)
    assert (state.state, state.now["step"], state.begun, state.heard) == ("running", 5, 1000.0, 1030.0)
    assert state.tests == [{"epoch": 0, "top1": 50.0}]  # what is half written is not read
    assert state.training == 400.0
    assert state_at(tmp_path, 1300.0) == "silent"
    write_record(folder / "failed.json", make_failure(RUN, "ValueError: no"))
    os.utime(folder / "failed.json", (1040.0, 1040.0))
    assert state_at(tmp_path, 1041.0) == "failed"
    put(folder, "config.json", "{}", 1050.0)  # it is tried again
    assert state_at(tmp_path, 1051.0) == "running"
    write_record(folder / "result.json", make_failure(RUN, "") | {"status": "done", "seconds": 30.0})
    os.utime(folder / "result.json", (1085.0, 1085.0))
    state = look(RUN, tmp_path, clock=1090.0)
    assert (state.state, state.training, state.around) == ("done", 30.0, 5.0)


def test_collected_records_are_enough(tmp_path):
    record = {"status": "done", "seconds": 3.0}
    assert state_at(tmp_path, 1000.0, record) == "done"
    record["status"] = "failed"  # as where its worker died again and again
    assert state_at(tmp_path, 1000.0, record) == "failed"


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "7", '"step"'])
def test_half_a_file_is_none(tmp_path, text):
    put(tmp_path / RUN.hash, "config.json", "{}", 1000.0)
    put(tmp_path / RUN.hash, "progress.json", text, 1000.0)
    state = look(RUN, tmp_path, clock=1001.0)
    assert (state.state, state.now) == ("running", {})


def test_a_resumed_run_began_as_long_ago_as_it_took(tmp_path):
    put(tmp_path / RUN.hash, "config.json", "{}", 1000.0)
    put(tmp_path / RUN.hash, "progress.json", '{"step": 5, "steps": 100, "seconds": 600.0}', 1010.0)
    state = look(RUN, tmp_path, clock=1011.0)
    assert state.begun == 410.0


def test_a_run_tells_where_it_is_and_forgets_it_in_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr("fadeout.experiments.execute._TELL_EVERY", 0.0)
    run, asked = Run(epochs=2, steps=2, method="gmp"), []

    def stop():
        asked.append(look(run, tmp_path))
        return len(asked) == 3

    with pytest.raises(Stopped):
        execute(run, tmp_path, stop=stop)
    assert [state.now["step"] for state in asked] == [1, 2, 3]
    assert asked[-1].now["steps"] == 4
    assert asked[-1].now["top1"] == asked[-1].tests[0]["top1"]
    assert asked[-1].now["seconds"] > 0
    record = execute(run, tmp_path)
    assert "progress.json" not in {path.name for path in (tmp_path / run.hash).iterdir()}
    state = look(run, tmp_path)
    assert state.record == record


def test_a_disk_that_is_full_does_not_stop_a_run(tmp_path):
    write_progress(tmp_path / "missing", {"step": 1})
    assert not list(tmp_path.iterdir())
    write_progress(tmp_path, {"loss": float("nan")})
    assert json.loads((tmp_path / "progress.json").read_text())["loss"] != 0


# How long it takes ----------------------------------------------------------------------------------------


def left(states, jobs=1, clock=100.0, before=()):
    return Estimate(states, clock, before).all(jobs)


def test_nothing_is_known_at_first():
    assert left([Progress(RUN, "waiting")]) is None
    assert left([running(SLOW, 10, 5.0, begun=95.0), Progress(RUN, "waiting")]) is None
    assert left([done(RUN, 10.0)]) == 0


def test_by_the_steps_of_a_run_itself():
    assert left([running(RUN, 25, 10.0, begun=90.0)]) == 30.0
    # for 4 seconds nothing was heard, but time goes on
    assert left([running(RUN, 25, 10.0, begun=86.0, heard=96.0)]) == 26.0


def test_by_the_epochs_of_runs_that_are_like_it():
    same = Progress(Run(epochs=20, seed=1), "waiting")
    assert left([done(RUN, 10.0), same]) == 20.0
    assert left([done(RUN, 10.0), done(Run(epochs=10, method="gmp"), 40.0), same]) == 20.0
    # another method counts where the same is not known, another network never
    assert left([done(Run(epochs=10, method="gmp"), 40.0), same]) == 80.0
    assert left([done(SLOW, 40.0), same]) is None


def test_unequal_runs_are_dealt_out_to_whoever_is_free():
    waiting = [Progress(Run(epochs=20, seed=2), "waiting"), Progress(Run(epochs=10, seed=3), "waiting")]
    now = [running(RUN, 50, 10.0, begun=90.0), running(OTHER, 20, 10.0, begun=90.0)]
    # 10 and 40 seconds are left of these. Epochs took 2 and 2.5 seconds: of the others, the first takes 45,
    # from 10 on, the second 22.5, from 40 on
    assert left([*now, *waiting], jobs=2) == 62.5
    assert left([*now, *waiting], jobs=3) == 45.0  # the first at once, the second after 10
    assert left([*now, *waiting], jobs=4) == 45.0


def test_what_is_around_the_training_counts():
    states = [done(RUN, 10.0, around=4.0), Progress(Run(epochs=10, seed=1), "waiting")]
    assert left(states) == 14.0
    states = [done(RUN, 10.0, around=4.0), running(Run(epochs=10, seed=1), 50, 4.0, begun=95.0)]
    assert left(states) == 7.0  # 8 of training and 4 around it, of which 5 are gone


def test_a_run_that_rests_takes_what_is_left_of_it():
    rests = Progress(RUN, "silent", {"step": 25, "steps": 100, "seconds": 10.0}, 0.0, 10.0)
    assert left([rests], clock=1e6) == 30.0


def test_what_was_done_before_counts_only_where_nothing_else_is_known():
    old, new = done(RUN, 10.0), done(Run(epochs=10, seed=1), 30.0)
    waits = Progress(Run(epochs=10, seed=2), "waiting")
    assert left([old, waits], before=[RUN.hash]) == 10.0
    assert left([old, new, waits], before=[RUN.hash]) == 30.0
    assert left([old, new, waits]) == 20.0
