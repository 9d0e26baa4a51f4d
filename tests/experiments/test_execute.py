"""A run in its folder: what it writes, how it stops and goes on, and what bad folders get."""

import json
import resource
import signal

import pytest
import torch

import fadeout
from fadeout.experiments.execute import Stopped, execute
from fadeout.experiments.folder import BusyError, NewerError, alone, conditions
from fadeout.experiments.run import Run

SMALL = Run(method="gmp", epochs=2, steps=4)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return execute(SMALL, folder), folder / SMALL.hash


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def same_as(undisturbed, record, folder):
    wanted, whole = undisturbed
    assert {**record, "seconds": 0} == {**wanted, "seconds": 0}
    assert (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    mine, theirs = (torch.load(place / "checkpoint")["model"] for place in (folder, whole))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_the_folder_holds_all_that_is_needed(undisturbed):
    record, folder = undisturbed
    assert sorted(contents(folder)) == ["checkpoint", "config.json", "lock", "metrics.jsonl", "result.json"]
    assert json.loads((folder / "config.json").read_text()) == {"version": 1, "run": SMALL.to_dict()}
    assert json.loads((folder / "result.json").read_text()) == record
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    assert record["hash"] == folder.name == SMALL.hash
    assert record["run"] == SMALL.to_dict()
    assert record["parameters"] == sum(p.numel() for p in SMALL.build_model(10).parameters())
    assert record["parameters_left"] < 0.11 * record["parameters"]
    assert 0 < record["operations_left"] <= record["operations"]
    assert 0 <= record["after"] <= record["top5"] <= 100
    assert record["seconds"] > 0
    assert record["versions"]["torch"] == torch.__version__
    assert record["versions"]["fadeout"] == fadeout.__version__
    assert record["machine"].endswith("threads")


def test_a_finished_run_is_read_not_repeated(undisturbed, monkeypatch):
    record, folder = undisturbed
    before = contents(folder)
    monkeypatch.setattr("fadeout.experiments.execute.Execution", None)
    assert execute(SMALL, folder.parent) == record
    assert contents(folder) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("last", [1, 4, 8])  # in an epoch, at its end, at the end of all
def test_a_signal_saves_and_stops_and_the_next_call_goes_on(tmp_path, undisturbed, number, last):
    handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    seen = []

    def watch(now):
        seen.append(now["step"])
        if now["step"] == last:
            signal.raise_signal(number)

    with pytest.raises(Stopped):
        execute(SMALL, tmp_path, watch=watch)
    assert seen == list(range(1, last + 1))
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == handlers
    folder = tmp_path / SMALL.hash
    assert not (folder / "result.json").exists()
    same_as(undisturbed, execute(SMALL, tmp_path, watch=watch), folder)
    assert seen == list(range(1, 9))  # nothing twice


def test_a_signal_too_late_for_the_run_still_stops_what_follows(tmp_path, monkeypatch):
    from fadeout.experiments.execute import Execution

    real = Execution._record
    monkeypatch.setattr(Execution, "_record", lambda self: (signal.raise_signal(15), real(self))[1])
    with pytest.raises(Stopped):
        execute(SMALL, tmp_path)
    assert execute(SMALL, tmp_path)["status"] == "done"


def test_the_second_signal_stops_at_once(tmp_path):
    def watch(now):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        execute(SMALL, tmp_path, watch=watch)
    assert not isinstance(caught.value, Stopped)


def test_checkpoints_come_at_the_interval_asked_for(tmp_path, monkeypatch):
    times = []
    monkeypatch.setattr(
        "fadeout.experiments.execute.write_atomically", lambda path, fill: times.append(path.name)
    )
    execute(SMALL, tmp_path / "often", checkpoint_every=0)
    assert times == ["checkpoint"] * 9  # eight steps, and the end
    times.clear()
    execute(SMALL, tmp_path / "never", checkpoint_every=1e9)
    assert times == ["checkpoint"]


def test_a_full_disk_leaves_the_last_checkpoint_and_says_so(tmp_path, undisturbed):
    folder, limits, before = tmp_path / SMALL.hash, resource.getrlimit(resource.RLIMIT_FSIZE), {}

    def watch(now):
        if now["step"] == 4:
            before.update(contents(folder))
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))

    try:
        with pytest.raises(OSError, match="the one before is intact: make room") as caught:
            execute(SMALL, tmp_path, checkpoint_every=0, watch=watch)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(folder) in str(caught.value)
    assert contents(folder) == before
    same_as(undisturbed, execute(SMALL, tmp_path), folder)


@pytest.mark.parametrize("name", ["config.json", "result.json"])
def test_a_folder_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path, name):
    folder = tmp_path / SMALL.hash
    folder.mkdir()
    (folder / name).write_text('{"version": 2, "what": "ever"}')
    with pytest.raises(NewerError, match="is of version 2, this fadeout reads 1"):
        execute(SMALL, tmp_path)
    assert contents(folder) == {name: b'{"version": 2, "what": "ever"}'}


@pytest.mark.parametrize("name", ["config.json", "result.json", "checkpoint"])
def test_a_damaged_file_is_named(tmp_path, name):
    folder = tmp_path / SMALL.hash
    folder.mkdir()
    (folder / name).write_text("{")
    with pytest.raises(ValueError, match="cannot be read") as caught:
        execute(SMALL, tmp_path)
    assert str(folder / name) in str(caught.value)


def test_a_folder_that_is_in_use(tmp_path):
    folder = tmp_path / SMALL.hash
    folder.mkdir()
    with alone(folder), pytest.raises(BusyError, match="another process is at"):
        execute(SMALL, tmp_path)
    assert execute(SMALL, tmp_path)["status"] == "done"


def test_an_unknown_device(tmp_path):
    with pytest.raises(ValueError, match="no device 'tpu' here"):
        execute(SMALL, tmp_path, device="tpu")
    assert not list(tmp_path.iterdir())


def test_the_largest_seed(tmp_path):
    assert execute(Run(seed=2**32 - 1, epochs=1, steps=1), tmp_path)["status"] == "done"


def test_a_target_out_of_reach_is_said_before_it_trains(tmp_path):
    fields = {"method": "one_shot", "structure": "channels", "epochs": 1, "steps": 2, "min_channels": 0}
    with pytest.raises(ValueError, match=r"0\.999 of the parameters cannot be reached"):
        execute(Run(sparsity=0.999, **fields), tmp_path, watch=lambda now: pytest.fail("it trains"))
    record = execute(Run(sparsity=0.998, **fields), tmp_path)
    assert record["parameters_left"] <= 0.002 * record["parameters"]


def test_the_commit_is_that_of_the_source_or_none(monkeypatch, tmp_path):
    assert set(conditions()) == {"commit", "versions", "machine"}
    monkeypatch.setattr("fadeout.experiments.folder.__file__", str(tmp_path / "folder.py"))
    assert conditions()["commit"] is None
