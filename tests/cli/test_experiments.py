"""fadeout list, run and reproduce: what they print, write and exit with."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fadeout.cli import experiments as commands
from fadeout.cli.run_display import RunDisplay
from fadeout.experiments.bookkeeping import plan
from fadeout.experiments.catalogue import EXPERIMENTS, Experiment
from fadeout.experiments.disk.record_file import read_records
from fadeout.experiments.disk.run_folder import alone
from fadeout.experiments.run import DATA, MODELS, Run
from fadeout.experiments.tasks import TASKS, task
from fadeout.methods.registry import METHODS

needs_data = pytest.mark.skipif(
    not os.environ.get("FADEOUT_DATA"), reason="set FADEOUT_DATA to the folder of the data sets"
)
SHORT = ["--epochs", "2", "--steps", "2"]


@pytest.fixture
def fadeout(run, tmp_path, monkeypatch):
    """Run a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return run


@pytest.fixture
def experiment(monkeypatch):
    """An experiment of three small runs, one of which fails."""

    def generate():
        yield Run(method="gmp", epochs=1)
        yield Run(method="gmp", structure="channels", sparsity=0.9999, epochs=1)
        yield Run(method="auto", epochs=1)

    monkeypatch.setitem(EXPERIMENTS, "small", Experiment("small", "three runs", "table", generate))


# list -----------------------------------------------------------------------------------------------------


def test_list_names_everything(fadeout):
    code, output, _ = fadeout("list")
    assert code == 0
    for names in (MODELS, DATA, METHODS, TASKS, EXPERIMENTS):
        for name in names:
            assert f"  {name} " in output, name
    assert "resnet20-64 on cifar10, 300 epochs" in output
    assert "resnet20-16 on cifar10, 300 epochs" in output


# run ------------------------------------------------------------------------------------------------------


def test_run_trains_prunes_and_says_what_came_of_it(fadeout, tmp_path):
    code, output, complaint = fadeout("run", "digits", "--method", "gmp", *SHORT)
    assert (code, complaint) == (0, "")
    run = task("digits", method="gmp", epochs=2, steps=2)
    assert f"smallcnn on digits: gmp 90 % of weights seed 0, shortened, in runs/{run.hash}" in output
    assert "train: epoch 2/2" in output
    record = json.loads((tmp_path / "runs" / run.hash / "result.json").read_text())
    assert (
        f"{record['after']:.2f} %, {record['before']:.2f} before and {record['removed']:.2f} after" in output
    )
    again = fadeout("run", "--method", "gmp", *SHORT)  # digits is what is meant where no task is named
    assert again[1].splitlines()[-1] == output.splitlines()[-1]  # read, not repeated: the seconds are equal
    assert f"in runs/{run.hash}\n" in output
    assert f"in runs/{run.hash}, finished before\n" in again[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digts"], "no task 'digts'; did you mean digits? There are digits, lenet5-mnist"),
        (["digits", "--method", "swdd"], "no method 'swdd'; did you mean swd? There are dense"),
        (["digits", "--model", "smalcnn"], "no model 'smalcnn'; did you mean smallcnn? There are densenet40"),
        (["digits", "--data", "mnst"], "no data 'mnst'; did you mean mnist or imagenet? There are cifar10"),
        (["digits", "--sparsty", "0.5"], "--sparsity"),
        (["digits", "--sparsity", "90"], "between 0 and 1, got 90.0. Did you mean 0.9?"),
        (["digits", "--method", "growing_decay"], "pass --a-min and --a-max"),
        (["digits", "--method", "liu"], "--structure channels"),
        (
            ["digits", "--structure", "nm", "--epochs", "1", "--sparsity", "0.9"],
            "at most 0.5 of them can go, got sparsity=0.9",
        ),
        (["digits", "--structure", "nm", "--n", "4"], "n is below m; got NM(4, 4)"),
        (
            ["--of", "operations"],
            "--of does nothing with --structure elements: leave it out, or pass --struct",
        ),
        (["--structure", "blocks", "--couple"], "--couple does nothing with --structure blocks"),
        (["--structure", "nm", "--multiple-of", "8"], "or pass --structure channels"),
        (["--min-channels", "4"], "--min-channels does nothing with --structure elements"),
        (["--structure", "channels", "--rows", "4"], "or pass --structure blocks"),
        (["--m", "8"], "or pass --structure nm"),
        (["--fade", "foo"], "--fade does nothing with --method auto: leave it out, or pass --method variant"),
        (["gcn-cora", "--rounds", "3"], "--rounds does nothing with --method auto"),
        (["digits", "--structure", "blocks", "--rows", "0"], "rows is above 0, got 0"),
        (["digits", "--device", "tpu"], "no device 'tpu' here"),
        (
            ["--structure", "channels", "--no-norm"],
            "smallcnn has none with --no-norm: pass --structure",
        ),
    ],
)
def test_wrong_input_to_run(fadeout, arguments, message):
    code, _, complaint = fadeout("run", *arguments)
    assert code == 2
    assert message in complaint


def test_run_in_use(fadeout, tmp_path):
    folder = tmp_path / "runs" / task("digits", epochs=2, steps=2).hash
    folder.mkdir(parents=True)
    with alone(folder):
        code, _, complaint = fadeout("run", "digits", *SHORT)
    assert (code, complaint) == (2, f"fadeout: another process is at {folder.relative_to(tmp_path)}\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_says_where_the_state_is(fadeout, monkeypatch, number):
    with monkeypatch.context() as patch:
        patch.setattr(RunDisplay, "__call__", lambda self, now: signal.raise_signal(number))
        code, _, complaint = fadeout("run", "digits", *SHORT)
    name = task("digits", epochs=2, steps=2).hash
    wanted = f"fadeout: stopped; its state is in runs/{name}, and the same command goes on\n"
    assert (code, complaint) == (130, wanted)
    code, output, _ = fadeout("run", "digits", *SHORT)
    assert (code, f"in runs/{name}, resumed\n" in output) == (0, True)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_process(tmp_path, number):
    command = [sys.executable, "-m", "fadeout", "run", "digits", "--epochs", "100000", "--results", tmp_path]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not list(tmp_path.glob("*/metrics.jsonl")):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(number)
        complaint = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    (folder,) = tmp_path.iterdir()
    assert f"stopped; its state is in {folder}, and the same command goes on" in complaint
    assert (folder / "checkpoint").exists()


def test_the_command_line_and_the_catalogue_name_the_same_run(monkeypatch):
    seen = []
    monkeypatch.setattr(commands, "_run", lambda run, options: seen.append(run))
    commands.run(["resnet50-imagenet", "--structure", "channels", "--method", "liu", "--sparsity", "0.5"])
    assert seen == [task("resnet50-imagenet", structure="channels", method="liu", sparsity=0.5)]
    assert seen[0].last_fine_tune == 40


@pytest.mark.parametrize(
    ("arguments", "sparsity", "words"),
    [
        ([], 0.5, "50 % of weights as 2:4"),
        (["--n", "1"], 0.75, "75 % of weights as 1:4"),
        (["--sparsity=0.3"], 0.3, "30 % of weights, at most 2 of every 4, seed"),
        (["--n", "1", "--m", "16", "--sparsity", "0.9"], 0.9, "90 % of weights, at most 15 of every 16,"),
    ],
)
def test_the_sparsity_of_groups(monkeypatch, arguments, sparsity, words):
    seen = []
    monkeypatch.setattr(commands, "_run", lambda run, options: seen.append(run))
    commands.run(["digits", "--structure", "nm", *arguments])
    assert seen[0].sparsity == sparsity
    assert words in str(seen[0])


def test_groups_are_pruned_without_a_word_about_the_sparsity(fadeout, tmp_path):
    code, output, complaint = fadeout("run", "--structure", "nm", "--method", "gmp", *SHORT)
    assert (code, complaint) == (0, "")
    assert "gmp 50 % of weights as 2:4 seed 0" in output


@pytest.mark.parametrize("name", TASKS)
def test_what_a_task_has_set_is_no_choice_of_the_user(monkeypatch, name):
    seen = []
    monkeypatch.setattr(commands, "_run", lambda run, options: seen.append(run))
    commands.run([name, "--method", "dense"])
    assert seen[0].method == "dense"


# reproduce ------------------------------------------------------------------------------------------------


def test_reproduce_goes_on_after_a_failure_and_says_so(fadeout, experiment, tmp_path):
    code, output, _ = fadeout("reproduce", "small", "--jobs", "1", "--steps", "2")
    assert code == 1
    lines = output.splitlines()
    assert lines[0] == "small: 3 runs, 0 of them finished"
    assert lines[-1] == "small: 2 done, 1 failed; written to runs/small.jsonl"
    assert "2/3" in lines[2]
    assert "failed: ValueError: sparsity=0.9999 of the parameters cannot be reached" in lines[2]
    records = list(read_records(tmp_path / "runs" / "small.jsonl").values())
    assert [record["status"] for record in records] == ["done", "failed", "done"]
    assert all(record["run"]["steps"] == 2 for record in records)
    again = fadeout("reproduce", "small", "--jobs", "1", "--steps", "2", "--only", "structure=elements")
    assert again[0] == 0
    assert again[1].startswith("small: 2 runs, 2 of them finished\n")
    # the collected records alone are enough to go on from, without the folders of the runs
    for record in records:
        shutil.rmtree(tmp_path / "runs" / record["hash"])
    again = fadeout("reproduce", "small", "--jobs", "1", "--steps", "2", "--only", "structure=elements")
    assert again[1].splitlines() == [
        "small: 2 runs, 2 of them finished",
        "small: 2 done; written to runs/small.jsonl",
    ]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [".lock", "small.jsonl"]


def test_dry_does_nothing(fadeout, experiment, tmp_path):
    code, output, _ = fadeout("reproduce", "small", "--dry", "--only", "method=gmp", "sparsity=0.9")
    assert code == 0
    once_each = ("--only", "method=gmp", "--only", "sparsity=0.9")
    assert fadeout("reproduce", "small", "--dry", *once_each)[1] == output
    run = Run(method="gmp", epochs=1)
    assert output.splitlines() == [
        "small: 1 runs, 0 of them finished",
        f"  {run.hash}  smallcnn on digits: gmp 90 % of weights seed 0",
    ]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["smal"], "no experiment 'smal'; did you mean small? There are comparison"),
        (["small", "--only", "seeed=1"], "no field 'seeed'; did you mean seed? There are data"),
        (["small", "--only", "method"], "--only takes conditions such as method=auto, got 'method'"),
        (["small", "--only", "sparsity=x"], "--only sparsity= takes a number, got 'x'"),
        (["small", "--only", "method=gnp"], "no run of small meets method=gnp; method is gmp or auto"),
        (["small", "--jobs", "0"], "jobs is a whole number from 1 on, got 0"),
        (["small", "--steps", "0"], "steps is above 0, got 0"),
    ],
)
def test_wrong_input_to_reproduce(fadeout, experiment, arguments, message):
    code, output, complaint = fadeout("reproduce", *arguments)
    assert code == 2
    assert message in complaint
    assert output == ""  # before anything begins


def test_missing_data_are_said_before_anything_starts(fadeout, monkeypatch, tmp_path):
    def no_network(*given):
        from fadeout.experiments.data.download import DownloadError

        raise DownloadError("no network")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FADEOUT_DATA", raising=False)
    monkeypatch.setattr("fadeout.experiments.data.download.fetch", no_network)
    code, _, complaint = fadeout("reproduce", "cora", "--jobs", "1", "--data-dir", str(tmp_path / "mine"))
    assert code == 2
    assert f"place cora.content, cora.cites in {tmp_path / 'mine' / 'cora'}" in complaint
    assert not (tmp_path / "runs").exists()


# Data of the user -----------------------------------------------------------------------------------------


@pytest.fixture
def few_images(tmp_path):
    """A part of the sample of ImageNet: two images of each class for training, one for the test."""
    for part, count in (("train", 2), ("val", 1)):
        for place in (Path(os.environ["FADEOUT_DATA"]) / "imagenet-sample" / part).resolve().iterdir():
            folder = tmp_path / "data" / "imagenet-sample" / part / place.name
            folder.mkdir(parents=True)
            for image in sorted(place.iterdir())[:count]:
                (folder / image.name).symlink_to(image)
    return str(tmp_path / "data")


def check_outcome(fadeout, folder, *arguments):
    code, output, _ = fadeout("run", *arguments, "--epochs", "1", "--steps", "2", "--method", "gmp")
    assert code == 0
    assert "% of the parameters left" in output
    (result,) = folder.glob("runs/*/result.json")
    record = json.loads(result.read_text())
    assert record["top5"] >= record["after"]
    assert record["parameters_left"] < 0.11 * record["parameters"]
    return record


@pytest.mark.slow
@needs_data
def test_imagenet_end_to_end(fadeout, tmp_path, few_images):
    arguments = ["--data", "imagenet_sample", "--model", "resnet50", "--batch-size", "4"]
    record = check_outcome(
        fadeout,
        tmp_path,
        "resnet50-imagenet",
        *arguments,
        "--data-dir",
        few_images,
        "--structure",
        "channels",
    )
    assert record["operations"] > 4e9  # of the large stem, at 224 pixels


@pytest.mark.slow
@needs_data
def test_cifar100_end_to_end(fadeout, tmp_path):
    check_outcome(fadeout, tmp_path, "resnet34-cifar100", "--data", "cifar100_sample", "--width", "8")


# watch ----------------------------------------------------------------------------------------------------


NOBODY = "nobody is at these runs: without --watch, the same command carries them out"


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_watch_follows_the_runs_of_others_and_ends_with_them(fadeout, experiment, tmp_path, monkeypatch):
    arguments = ["reproduce", "small", "--steps", "2"]
    fadeout(*arguments, "--jobs", "1", "--only", "method=auto")
    left = [replace(one, steps=2) for one in EXPERIMENTS["small"].runs() if one.method == "gmp"]

    def work(seconds):  # while the watcher sleeps, somebody else is at the runs, one by one
        plan("small", [left.pop()], Path("runs")).carry_out(lambda *given: None, jobs=1)

    monkeypatch.setattr(commands.time, "sleep", work)
    code, output, complaint = fadeout(*arguments, "--watch")
    assert (code, complaint) == (1, "")  # one has failed
    lines = output.splitlines()
    assert lines[0] == "small: 3 runs, 1 of them finished"
    assert lines[1] == NOBODY  # said once
    assert [line[:3] for line in lines[2:4]] == ["2/3", "3/3"]
    assert "failed: ValueError: sparsity=0.9999" in lines[2]
    assert lines[-1] == "small: 2 done, 1 failed; written to runs/small.jsonl"
    before = contents(tmp_path)
    assert fadeout(*arguments, "--watch")[0] == 1
    assert contents(tmp_path) == before  # it only reads


def test_watch_can_be_left(fadeout, experiment, monkeypatch, tmp_path):
    monkeypatch.setattr(commands.time, "sleep", lambda seconds: signal.raise_signal(signal.SIGINT))
    code, output, complaint = fadeout("reproduce", "small", "--watch")
    assert (code, complaint) == (130, "fadeout: watched no more; whoever carries out the runs goes on\n")
    assert output == f"small: 3 runs, 0 of them finished\n{NOBODY}\n"
    assert not list(tmp_path.iterdir())


def test_watch_and_dry_contradict_each_other(fadeout, experiment):
    code, _, complaint = fadeout("reproduce", "small", "--watch", "--dry")
    assert code == 2
    assert "pass one" in complaint
