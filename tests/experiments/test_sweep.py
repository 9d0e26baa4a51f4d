"""Many runs: failures, repetition, workers that die; on processes and on a Ray cluster."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from joblib.externals.loky.process_executor import _RemoteTraceback
from support.helpers import wait_for
from support.ray_sweep import TWENTY

from fadeout.experiments import sweep as module
from fadeout.experiments.disk.record_file import read_record
from fadeout.experiments.disk.run_folder import alone
from fadeout.experiments.execute import Stopped, execute
from fadeout.experiments.run import Run
from fadeout.experiments.sweep import sweep

SMALL = Run(epochs=1, steps=2, method="gmp")
FAILING = replace(SMALL, structure="channels", sparsity=0.9999)  # out of reach


@pytest.fixture
def executed(monkeypatch):
    """The runs that are carried out in this process."""
    seen = []

    def counting(run, *rest, **options):
        seen.append(run.hash)
        return execute(run, *rest, **options)

    monkeypatch.setattr(module, "execute", counting)
    return seen


# In this process ------------------------------------------------------------------------------------------


def test_a_failing_run_is_recorded_and_the_others_go_on(tmp_path):
    runs, said = [SMALL, FAILING, replace(SMALL, seed=1)], []
    records = sweep(runs, tmp_path, jobs=1, on_done=said.append)
    assert [record["status"] for record in records] == ["done", "failed", "done"]
    assert said == records
    assert "Traceback" in records[1]["error"]
    assert "cannot be reached by removing channels" in records[1]["error"]
    assert records[1]["commit"] == records[0]["commit"]
    assert read_record(tmp_path / FAILING.hash / "failed.json") == records[1]


def test_finished_runs_are_not_repeated_failed_ones_are_and_the_same_twice_is_one(
    tmp_path, executed, monkeypatch
):
    first = sweep([SMALL, FAILING, SMALL], tmp_path, jobs=1)
    assert executed == [SMALL.hash, FAILING.hash]
    assert len(first) == 2
    stamp = (tmp_path / SMALL.hash / "result.json").stat().st_mtime_ns
    monkeypatch.setattr("fadeout.structures.channels.BoundChannels.check", lambda *given: None)
    monkeypatch.setattr(module, "execute", lambda run, *rest, **options: first[0] | {"hash": run.hash})
    again = sweep([SMALL, FAILING], tmp_path, jobs=1)
    assert [record["status"] for record in again] == ["done", "done"]
    assert not (tmp_path / FAILING.hash / "failed.json").exists()
    assert (tmp_path / SMALL.hash / "result.json").stat().st_mtime_ns == stamp


def test_a_run_that_another_process_is_at_is_left_to_it(tmp_path):
    (tmp_path / SMALL.hash).mkdir()
    with alone(tmp_path / SMALL.hash):
        records = sweep([SMALL, replace(SMALL, seed=1)], tmp_path, jobs=1)
    assert [record["status"] for record in records] == ["elsewhere", "done"]


def test_a_folder_of_a_newer_version_fails_and_is_not_touched(tmp_path):
    folder = tmp_path / SMALL.hash
    folder.mkdir()
    (folder / "config.json").write_text('{"version": 3}')
    (record,) = sweep([SMALL], tmp_path, jobs=1)
    assert record["status"] == "failed"
    assert "version 3" in record["error"]
    assert [path.name for path in folder.iterdir()] == ["config.json"]


def test_a_disk_too_full_for_a_note_does_not_end_the_sweep(tmp_path, monkeypatch):
    def full(*given):
        raise OSError("no space left")

    monkeypatch.setattr(module, "write_record", full)
    records = sweep([FAILING, SMALL], tmp_path, jobs=1)
    assert [record["status"] for record in records] == ["failed", "done"]


def test_a_signal_stops_the_whole_sweep(tmp_path, executed):
    def watch(now):
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Stopped):
        sweep([SMALL, replace(SMALL, seed=1)], tmp_path, jobs=1, watch=watch)
    assert executed == [SMALL.hash]


def test_what_on_done_raises_ends_the_sweep_after_the_runs_under_way(tmp_path, executed):
    def full(record):
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        sweep([SMALL, replace(SMALL, seed=1)], tmp_path, jobs=1, on_done=full)
    assert executed == [SMALL.hash]
    assert [path.name for path in tmp_path.iterdir()] == [SMALL.hash]


def test_the_threads_of_this_process_stay(tmp_path):
    before = torch.get_num_threads()
    sweep([SMALL], tmp_path, jobs=1)
    assert torch.get_num_threads() == before


def test_wrong_input(tmp_path):
    with pytest.raises(ValueError, match="jobs is a whole number from 1 on, got 0"):
        sweep([SMALL], tmp_path, jobs=0)
    with pytest.raises(ValueError, match="no backend 'rays'; did you mean ray"):
        sweep([SMALL], tmp_path, backend="rays")  # pyright: ignore
    with pytest.raises(ValueError, match="--backend ray"):
        sweep([SMALL], tmp_path, address="auto")
    with pytest.raises(ValueError, match="no device 'tpu' here"):
        sweep([SMALL], tmp_path, device="tpu")
    with pytest.raises(ValueError, match="a number of seconds from 0 on, got nan"):
        sweep([SMALL], tmp_path, checkpoint_every=math.nan)
    assert not list(tmp_path.iterdir())


# Workers that die -----------------------------------------------------------------------------------------


class DiedError(Exception):
    pass


@pytest.fixture
def mortal(monkeypatch, tmp_path):
    """Workers, two at a time, that die at some runs: ``deaths[hash]`` times; batches are noted."""
    batches, deaths = [], {}

    class Workers(module._backend):
        def __init__(self, *given):
            self.deaths, self._started = (DiedError,), None

        def attempt(self, tasks):
            batches.append([task[0].seed for task in tasks])
            for two in (tasks[i : i + 2] for i in range(0, len(tasks), 2)):
                for task in two:
                    folder = tmp_path / task[0].hash
                    folder.mkdir(exist_ok=True)
                    (folder / "config.json").write_text("{}")
                deadly = [task[0].seed for task in two if deaths.get(task[0].seed)]
                if deadly:
                    deaths[deadly[0]] -= 1
                    raise DiedError("killed")
                for task in two:
                    (tmp_path / task[0].hash / "result.json").write_text("{}")
                    yield {"hash": task[0].hash, "status": "done"}

    monkeypatch.setattr(module, "_backend", Workers)
    return batches, deaths


def test_runs_whose_worker_dies_are_carried_out_by_another(tmp_path, mortal):
    batches, deaths = mortal
    deaths[0] = 1
    records = sweep([replace(SMALL, seed=seed) for seed in range(4)], tmp_path)
    assert [record["status"] for record in records] == ["done"] * 4
    assert batches == [[0, 1, 2, 3], [0, 1, 2, 3]]


def test_a_run_that_always_kills_its_worker_fails_alone(tmp_path, mortal):
    batches, deaths = mortal
    deaths[2] = 1000
    records = sweep([replace(SMALL, seed=seed) for seed in range(6)], tmp_path)
    assert [record["status"] for record in records] == ["done", "done", "failed", "done", "done", "done"]
    assert "its worker died 5 times: killed" in records[2]["error"]
    assert batches == [[0, 1, 2, 3, 4, 5], [2, 3, 4, 5], [2], [2], [2], [3], [4, 5]]


def test_why_a_worker_died_is_said_in_a_line(tmp_path, monkeypatch):
    death = DiedError("A task has failed to un-serialize.\nAre the arguments picklable?")
    sent = "Traceback (most recent call last):\n  ...\nIndexError: list index out of range\n"

    class Workers(module._backend):
        def __init__(self, *given):
            self.deaths, self._started = (DiedError,), None

        def attempt(self, tasks):
            raise death

    monkeypatch.setattr(module, "_backend", Workers)
    (record,) = sweep([SMALL], tmp_path)
    said = "its worker died 5 times: A task has failed to un-serialize. Are the arguments picklable?"
    assert record["error"] == said
    death.__cause__ = _RemoteTraceback(sent)
    (record,) = sweep([SMALL], tmp_path)
    assert record["error"] == "its worker died 5 times: IndexError: list index out of range"


# Real workers ---------------------------------------------------------------------------------------------


def at_work(results):
    """The processes that hold the lock of a run in this folder, by looking at what they have open."""
    found = {}
    for place in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = os.readlink(place)
        except OSError:
            continue
        if target.startswith(f"{results}/") and target.endswith("/lock"):
            found[int(place.parts[2])] = Path(target).parent
    return found


def kill_one(results, killed):
    """Kill (SIGKILL) the first worker that has written a checkpoint of a run in this folder."""
    for _ in range(6000):
        for number, folder in at_work(results).items():
            if number != os.getpid() and (folder / "checkpoint").exists():
                os.kill(number, signal.SIGKILL)
                killed.append(folder.name)
                return
        time.sleep(0.02)


def outcome(records):
    changing = ("seconds", "machine", "commit")
    return [{name: value for name, value in one.items() if name not in changing} for one in records]


@pytest.fixture(scope="module")
def alone_done(tmp_path_factory):
    """The records of the twenty runs, one after the other, undisturbed."""
    return outcome(sweep(TWENTY, tmp_path_factory.mktemp("alone"), jobs=1))


def disturbed(results, **options):
    killed = []
    killer = threading.Thread(target=kill_one, args=(results, killed))
    killer.start()
    records = sweep(TWENTY, results, jobs=2, checkpoint_every=0, **options)
    killer.join()
    assert len(killed) == 1
    return outcome(records)


@pytest.mark.slow
def test_twenty_runs_on_processes_one_of_which_is_killed(tmp_path, alone_done):
    assert disturbed(tmp_path) == alone_done


@pytest.mark.slow
def test_twenty_runs_on_a_ray_cluster_of_two_nodes_one_worker_of_which_is_killed(
    tmp_path, alone_done, monkeypatch
):
    pytest.importorskip("ray", reason='ray is not installed: pip install "fadeout[ray]"')
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    program = Path(__file__).parents[1] / "support" / "ray_sweep.py"
    killed = []
    killer = threading.Thread(target=kill_one, args=(tmp_path, killed))
    with subprocess.Popen([sys.executable, program, tmp_path], stdout=subprocess.PIPE, text=True) as process:
        killer.start()
        printed = process.communicate(timeout=900)[0]
    killer.join()
    assert process.returncode == 0
    assert len(killed) == 1
    nodes, records = json.loads(printed.splitlines()[-1])
    assert nodes == 2
    assert outcome(records) == json.loads(json.dumps(alone_done))


PROGRAM = """
import sys
from fadeout.experiments.run import Run
from fadeout.experiments.sweep import sweep
if __name__ == "__main__":
    runs = [Run(epochs=int(sys.argv[2]), seed=seed) for seed in range(4)]
    records = sweep(runs, sys.argv[1], jobs=2, checkpoint_every=0.2)
    print([record["status"] for record in records])
"""


@pytest.fixture
def start(tmp_path):
    """Start a sweep of four runs in another process; it is ended with the test."""
    (tmp_path / "program.py").write_text(PROGRAM)
    started = []

    def call(results, epochs):
        command = [sys.executable, tmp_path / "program.py", results, str(epochs)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield call
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_two_sweeps_on_one_folder_do_no_run_twice(tmp_path, start):
    results = tmp_path / "runs"
    outputs = [process.communicate(timeout=300) for process in (start(results, 3), start(results, 3))]
    counts = [eval(printed) for printed, _ in outputs]
    assert all(state in ("done", "elsewhere") for states in counts for state in states)
    for run in (Run(epochs=3, seed=seed) for seed in range(4)):
        record = json.loads((results / run.hash / "result.json").read_text())
        assert record["status"] == "done"
        assert len((results / run.hash / "metrics.jsonl").read_text().splitlines()) == 3


@pytest.mark.slow
def test_workers_save_and_end_when_their_sweep_is_killed(tmp_path, start):
    results = tmp_path / "runs"
    process = start(results, 100_000)
    wait_for(lambda: len(list(results.glob("*/checkpoint"))) == 2)
    assert len(at_work(results)) == 2
    process.kill()
    wait_for(lambda: not at_work(results))
    process.communicate(timeout=60)  # no worker has its output open any more
