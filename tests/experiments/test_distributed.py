"""Several processes at one training: real ones, over gloo, on the CPU."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from support.helpers import same
from support.ranks import EQUAL, RESUMED, RUNS

from fadeout.cli import main
from fadeout.experiments.distributed import ALONE, World, join
from fadeout.experiments.run import Run

PROGRAM = Path(__file__).parents[1] / "support" / "ranks.py"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the processes of ranks.py left behind."""
    place = tmp_path_factory.mktemp("ranks")
    done = subprocess.run(
        [sys.executable, PROGRAM, place], capture_output=True, text=True, env=ENVIRONMENT, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return place


def outcomes(folder, trial, size):
    return [torch.load(folder / f"{trial}.{rank}", weights_only=False) for rank in range(size)]


def whole(folder, trial, name):
    """What is left of a run that ended: its metrics, its last checkpoint, its result."""
    place = folder / trial / RUNS[name].hash
    state, record = torch.load(place / "checkpoint"), json.loads((place / "result.json").read_text())
    for one in (state, record):
        assert one.pop("seconds") > 0
    record.pop("checksum")  # which depends on the seconds
    return (place / "metrics.jsonl").read_bytes(), state, record


# Shares ---------------------------------------------------------------------------------------------------


def test_shares_are_all_of_a_batch_and_their_weights_make_its_mean():
    x, y = torch.arange(7.0), torch.tensor([3, 1, 2, -100, 1, -100, 0])
    shares = [World("ddp", rank, 3).share(x, y) for rank in range(3)]
    assert sorted(torch.cat([share.x for share in shares]).tolist()) == x.tolist()
    assert [share.number for share in shares] == [0, 1, 2]
    means = [share.x[share.y >= 0].mean() * share.weight for share in shares]
    assert sum(means) / 3 == pytest.approx(float(x[y >= 0].mean()))


def test_a_process_without_a_share_takes_what_does_not_count():
    share = World("ddp", 2, 3).share(torch.tensor([5.0, 6.0]), torch.tensor([-100, 1]))
    assert (share.x.tolist(), share.y.tolist(), share.weight) == ([6.0], [1], 0.0)


def test_a_graph_and_one_process_take_all():
    x, y = torch.zeros(3), torch.zeros(3)
    assert ALONE.share(x, y) == (x, y, 1.0, 0)
    assert World("ddp", 1, 2).share((x, x), y) == ((x, x), y, 1.0, 0)


# Training -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "size", "batch", "pruned"),
    EQUAL,
)
def test_many_processes_equal_one(folder, how, size, batch, pruned):
    found = outcomes(folder, f"equal-{how}-{size}-{batch}-{pruned}", size)
    assert "error" not in found[0], found[0]
    wanted = torch.load(folder / f"alone-{batch}-{pruned}")
    for one in found:  # to the last bit, all that all have
        same(one["losses"], found[0]["losses"])
        assert one["accuracy"] == wanted["accuracy"]
        if how == "ddp":
            same(one["weights"], found[0]["weights"])
    assert found[0]["losses"] == pytest.approx(wanted["losses"], rel=1e-9)
    for name, weight in wanted["weights"].items():
        torch.testing.assert_close(found[0]["weights"][name], weight, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_a_graph_is_seen_whole_by_all(folder):
    wanted = torch.load(folder / "alone-graph")
    for one in outcomes(folder, "graph", 2):
        same(one, wanted)


# Runs -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "size", "name"),
    RESUMED,
)
def test_a_signal_to_one_stops_all_and_resumed_they_end_the_same(folder, how, size, name):
    trial = f"{how}-{size}-{name}"
    assert outcomes(folder, f"{trial}-stop", size) == [{"error": "Stopped: "}] * size
    records = outcomes(folder, f"{trial}-rest", size)
    assert records == [records[0]] * size
    assert records[0]["status"] == "done"
    assert records[0]["parallel"] == [f"{how}, {size} processes"]
    same(whole(folder, trial, name), whole(folder, f"{trial}-whole", name))
    left = sorted(path.name for path in (folder / trial / RUNS[name].hash).iterdir())
    assert left == ["checkpoint", "config.json", "lock", "metrics.jsonl", "result.json"]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "size", "name"), [case for case in RESUMED if case[0] == "ddp"])
def test_the_target_is_met(folder, how, size, name):
    state = torch.load(folder / f"{how}-{size}-{name}" / RUNS[name].hash / "checkpoint")
    masks = state["masks"].values()
    kept = sum(int(mask.sum()) for mask in masks) / sum(mask.numel() for mask in masks)
    if RUNS[name].structure == "elements":
        assert kept == pytest.approx(1 - RUNS[name].sparsity, abs=1e-4)
    for mask, parameter in state["masks"].items():
        assert not state["model"][mask][~parameter].any()


@pytest.mark.slow
def test_a_run_goes_on_with_fewer_processes_and_with_one(folder):
    for size in (3, 2):
        assert outcomes(folder, f"fewer-{size}", size) == [{"error": "Stopped: "}] * size
    (record,) = outcomes(folder, "fewer-1", 1)
    assert record["parallel"] == ["fsdp, 3 processes", "ddp, 2 processes", "one process"]
    metrics, state, _ = whole(folder, "fewer", "dense")
    assert [json.loads(line)["epoch"] for line in metrics.splitlines()] == [0, 1]
    assert state["model"]["norm1.num_batches_tracked"] == 8
    reference = whole(folder, "fsdp-3-dense-whole", "dense")[1]
    for name, weight in reference["model"].items():  # batch-norms see other batches, no more than that
        assert state["model"][name].shape == weight.shape
        change = (state["model"][name] - weight).double().norm()
        assert change < 0.2 * weight.double().norm() + 0.2, name


@pytest.mark.slow
def test_what_one_process_began_others_end(folder):
    record, other = outcomes(folder, "more", 2)
    assert record == other
    assert record["parallel"] == ["one process", "fsdp, 2 processes"]


# Errors ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_when_one_dies_the_others_do_not_wait(folder):
    assert not (folder / "death.1").exists()
    for rank in (0, 2):
        error = torch.load(folder / f"death.{rank}")["error"]
        assert error.startswith(
            "ConnectionError: another process of this run is gone; the same command goes on"
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trial", "message"),
    [
        ("busy", "BusyError: another process is at"),
        ("damaged", "cannot be read"),
        ("small", "ValueError: a batch of 3 among 2 processes"),
    ],
)
def test_an_error_is_that_of_all(folder, trial, message):
    errors = [one["error"] for one in outcomes(folder, trial, 2)]
    assert errors[0] == errors[1]
    assert message in errors[0]


def test_without_torchrun_a_process_is_alone(monkeypatch):
    with join("fsdp", "cpu") as world:
        assert (world.size, world.rank, world.main, world.how) == (1, 0, True, None)
    with pytest.raises(ValueError, match="no way 'dp' to share"), join("dp"):
        pass


def test_torchrun_without_a_way_to_share_is_an_error(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, complaint = run("run", "digits", "--epochs", "1")
    assert code == 2
    assert "torchrun has started 2 processes, and nothing says how they share the run" in complaint
    code, _, complaint = run("run", "digits", "--parallel", "ddp", "--device", "mps")
    assert (code, "on cpu or cuda, got 'mps'" in complaint) == (2, True)
    code, _, complaint = run("reproduce", "cora")
    assert (code, "torchrun is for fadeout run --parallel" in complaint) == (2, True)
    assert not list(tmp_path.iterdir())


def test_one_process_is_as_without_the_option(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    short = ["--method", "gmp", "--epochs", "1", "--steps", "2"]
    main(["run", "digits", *short, "--results", "one"])
    main(["run", "digits", *short, "--results", "two", "--parallel", "fsdp"])
    place = Run(method="gmp", epochs=1, steps=2).hash
    one, two = (torch.load(tmp_path / each / place / "checkpoint") for each in ("one", "two"))
    assert one.pop("seconds") != two.pop("seconds")
    same(one, two)
    assert "parallel" not in json.loads((tmp_path / "two" / place / "result.json").read_text())


# torchrun -------------------------------------------------------------------------------------------------


def torchrun(*arguments, size=2):
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    return subprocess.Popen(
        [*start, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=ENVIRONMENT,
    )


@pytest.mark.slow
def test_torchrun(tmp_path):
    short = ["--epochs", "1", "--steps", "2", "--results", tmp_path, "--parallel", "ddp"]
    output = torchrun("-m", "fadeout", "run", "digits", *short).communicate(timeout=120)[0]
    assert output.count("smallcnn on digits: auto 90 % of weights seed 0, shortened:") == 1, output
    assert "Warning" not in output
    (record,) = tmp_path.glob("*/result.json")
    assert json.loads(record.read_text())["parallel"] == ["ddp, 2 processes"]


def workers(process):
    """The processes that torchrun has started, by rank and number of the start."""
    found = {}
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        try:
            pairs = Path(f"/proc/{child}/environ").read_text().split("\0")
        except OSError:
            continue
        environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        if "RANK" in environment:
            found[int(environment["RANK"]), int(environment["TORCHELASTIC_RESTART_COUNT"])] = int(child)
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(("how", "method", "kills"), [("ddp", "auto", (1, 0)), ("fsdp", "dense", (0,))])
def test_a_process_that_is_killed_is_restarted_and_the_result_is_the_same(tmp_path, how, method, kills):
    def start(place):
        fields = ["--method", method, "--epochs", "8", "--steps", "5", "--results", tmp_path / place]
        options = ["--parallel", how, "--checkpoint-every", "0"]
        return torchrun("--max-restarts", "3", "-m", "fadeout", "run", "digits", *fields, *options)

    metrics = tmp_path / "killed" / Run(method=method, epochs=8, steps=5).hash / "metrics.jsonl"
    killed, begun = start("killed"), time.monotonic()
    for number, rank in enumerate(kills):
        lines = 0
        while lines < 2 + 3 * number or (rank, number) not in workers(killed):
            assert killed.poll() is None, killed.communicate()[0]
            assert time.monotonic() < begun + 200
            time.sleep(0.01)
            lines = len(metrics.read_bytes().splitlines()) if metrics.exists() else 0
        os.kill(workers(killed)[rank, number], signal.SIGKILL)
    output = killed.communicate(timeout=200)[0]
    assert killed.returncode == 0, output
    assert output.count("another process of this run is gone") == len(kills)
    whole = start("whole")
    assert whole.wait(timeout=200) == 0, whole.communicate()[0]
    states = []
    for place in ("killed", "whole"):
        (checkpoint,) = (tmp_path / place).glob("*/checkpoint")
        states.append((torch.load(checkpoint), checkpoint.with_name("metrics.jsonl").read_bytes()))
        assert states[-1][0].pop("seconds") > 0
    whole.stdout.close()
    same(*states)
