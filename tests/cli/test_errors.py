"""What goes wrong is said in a line: wrong networks, full disks, damaged files, closed pipes, faults."""

import io
import json
import os
import re
import resource
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import fadeout
from fadeout import cli
from fadeout.cli import experiments
from fadeout.experiments.catalogue import EXPERIMENTS, Experiment
from fadeout.experiments.run import Run
from fadeout.experiments.tasks import task
from fadeout.storage import network_file

LENET = ("--model", "fadeout.models:lenet5")
IMAGE = ("--input", "1,1,28,28")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def line(run):
    """Run a command that ends with exit code 2, and return the one line that it complains with."""

    def call(*arguments):
        code, _, complaint = run(*arguments)
        assert code == 2, complaint
        assert complaint.startswith("fadeout: ")
        assert complaint.count("\n") == 1
        return complaint

    return call


@pytest.fixture
def lenet(tmp_path):
    fadeout.save(fadeout.models.lenet5(), tmp_path / "lenet.safetensors")
    return "lenet.safetensors"


@pytest.fixture
def experiment(monkeypatch):
    def generate():
        yield Run(method="gmp", epochs=1, steps=1)

    monkeypatch.setitem(EXPERIMENTS, "small", Experiment("small", "one run", "table", generate))


@pytest.fixture
def full_disk():
    """No file may grow above the given size."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


# Networks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--model", "broken_module:f"],
            "cannot find the model 'broken_module:f': NameError: name 'nothing'",
        ),
        (["--model", "good_module:wants"], "good_module:wants() makes no network (TypeError: "),
        (["--model", "good_module:nothing"], "build() makes a NoneType, not a network"),
        (["--model", "..:f"], "cannot find the model '..:f'"),
        ([*LENET, "--input", "1,3,28,28"], "the network does not take inputs of shape (1, 3, 28, 28)"),
        ([*LENET, "--input", "28"], "the network does not take inputs of shape (28,)"),
        ([*LENET, "--input", "-1,1,28,28"], "--input is a shape such as 1,3,32,32, got '-1,1,28,28'"),
        ([*LENET, "--input", "1" + "0" * 30], "--input is a shape"),
        ([*LENET, "--input", "1000000,1000000,1000000"], "--input is a shape"),
        ([*LENET, *IMAGE, "--repeats", "-1"], "--repeats is a number of forward passes, got -1"),
    ],
)
def test_networks_and_inputs_that_do_not_fit(line, lenet, tmp_path, arguments, words):
    (tmp_path / "broken_module.py").write_text("nothing")
    (tmp_path / "good_module.py").write_text("def wants(size): pass\ndef nothing(): pass")
    assert words in line("inspect", lenet, *arguments)


@pytest.mark.parametrize("arguments", [["--model", "gcn"], ["--model", "resnet20", "--width", "1000000000"]])
def test_a_network_that_does_not_go_with_the_data(line, arguments):
    assert "does not go with the data digits, whose inputs are 1x1x8x8" in line("run", "digits", *arguments)


def test_a_network_that_cannot_be_exported(line, lenet, monkeypatch):
    def fail(*given):
        raise RuntimeError("small.onnx cannot be made of this network\nadvice")

    monkeypatch.setattr("fadeout.export.onnx", fail)
    assert "cannot be made of this network advice" in line("export", lenet, "small.onnx", *LENET, *IMAGE)


@pytest.mark.parametrize("output", ["small.safetensors", "small.onnx", "small.pt2"])
def test_a_full_disk(line, lenet, tmp_path, full_disk, output):
    command = "compact" if output.endswith("safetensors") else "export"
    before = sorted(os.listdir(tmp_path))
    full_disk(8192)
    assert "File too large" in line(command, lenet, output, *LENET, *IMAGE)
    assert sorted(os.listdir(tmp_path)) == before


# Files ----------------------------------------------------------------------------------------------------


NO_OBJECTS = ["[1]", '"text"', "[" * 10**5, "\xff"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("config.json", content) for content in NO_OBJECTS),
        *(("result.json", content) for content in (*NO_OBJECTS, '{"version": 1, "hash": 3}')),
    ],
)
def test_json_of_another_kind_in_a_run(line, tmp_path, name, content):
    folder = tmp_path / "runs" / task("digits", epochs=1, steps=1).hash
    folder.mkdir(parents=True)
    (folder / name).write_text(content, encoding="latin1")
    assert str(folder.relative_to(tmp_path) / name) in line("run", "digits", "--epochs", "1", "--steps", "1")


@pytest.mark.parametrize(
    "text", ["[1]", "{", "[" * 100_000, '{"version": 1}', '{"version": 2, "records": 1}']
)
@pytest.mark.parametrize("command", [["reproduce", "small", "--jobs", "1"], ["report", "runs"]])
def test_a_damaged_line_of_records_is_named(line, experiment, tmp_path, command, text):
    (tmp_path / "runs").mkdir()
    good = {"version": 1, "hash": "a", "status": "failed", "run": {}, "error": "no"}
    (tmp_path / "runs" / "small.jsonl").write_text(f"{json.dumps(good)}\n{text}\n")
    complaint = line(*command)
    assert f"{os.path.join('runs', 'small.jsonl')}, line 2: damaged" in complaint


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "digits", "--epochs-scale", "inf"], "epochs_scale is a finite number, got inf"),
        (["run", "digits", "--epochs-scale", "1e300"], "at most 1,000,000,000 epochs"),
        (["run", "digits", "--checkpoint-every", "nan"], "checkpoint_every is a number of seconds from 0 on"),
        (["reproduce", "small", "--epochs-scale", "inf"], "epochs_scale is a finite number, got inf"),
        (["reproduce", "small", "--epochs-scale", "nan"], "epochs_scale is above 0, got nan"),
    ],
)
def test_numbers_that_are_none(line, experiment, arguments, words):
    assert words in line(*arguments)


def forge(path, name, shape):
    """A small file whose tensor, all zeros, claims to be as large as it likes; its checksums are right."""
    fadeout.save(nn.Linear(2, 2), path)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    fields = json.loads(header["__metadata__"]["fadeout"])
    del fields["checksum"]
    fields["tensors"][name] = ["float32", shape, 0, "gaps8", 0]
    header[name] = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
    fields["checksum"] = network_file._checksum(fields)
    header["__metadata__"]["fadeout"] = json.dumps(fields)
    new = json.dumps(header).encode()
    path.write_bytes(len(new).to_bytes(8, "little") + new + content[8 + length :])


def test_a_small_file_that_claims_to_be_huge_is_looked_at_without_making_it(run, tmp_path):
    forge(tmp_path / "huge.safetensors", "huge", [2**20, 2**20])
    code, output, _ = run("inspect", "huge.safetensors")
    assert code == 0
    assert f"{2**40 + 6:,} parameters, 6 of them not zero" in output
    with pytest.raises(ValueError, match="is for another architecture: build\\(\\) makes no 'huge'"):
        fadeout.load(tmp_path / "huge.safetensors", lambda: nn.Linear(2, 2))


@pytest.mark.parametrize("shape", [[-1], ["a"], [2**80], [1.5], "ab", None])
def test_a_shape_that_no_tensor_has(line, tmp_path, shape):
    forge(tmp_path / "odd.safetensors", "odd", shape)
    assert "odd.safetensors: field 'fadeout' of the metadata" in line("inspect", "odd.safetensors")


def test_names_cannot_write_to_the_terminal(run, tmp_path):
    forge(tmp_path / "red.safetensors", "\x1b]0;owned\x07\x1b[31mlayer.weight\u202e", [4])
    code, output, _ = run("inspect", "red.safetensors")
    assert code == 0
    assert r"\x1b]0;owned\x07\x1b[31mlayer" in output
    assert not re.search(r"[^\n -~]", output)


# Faults, pipes, terminals ---------------------------------------------------------------------------------


def test_a_fault_is_a_line_and_a_file(run, monkeypatch, tmp_path):
    def fail():
        raise KeyError("what nobody thought of\n\x1b[31m")

    monkeypatch.setattr(experiments, "show", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, output, complaint = run("list")
    assert (code, output) == (70, "")
    found = re.fullmatch(r"fadeout: KeyError: .*; the traceback, .*, is in (\S+)\n", complaint)
    assert found
    text = Path(found[1]).read_text()
    assert text.startswith("Traceback")
    assert "test_errors.py" in text
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    code, _, complaint = run("list")
    assert code == 70
    assert "none could be written" in complaint


def main_with_output(monkeypatch, stream, *arguments):
    """The exit code of a command that prints to a stream."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        try:
            cli.main(arguments)
        except SystemExit as end:
            return end.code
        return 0


def test_nobody_reads_a_list(monkeypatch, capfd):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        assert main_with_output(monkeypatch, pipe, "list") == 141
    assert capfd.readouterr().err == ""


UNREAD = """
import os, runpy, sys
reader, writer = os.pipe()
os.close(reader)
os.dup2(writer, 1), os.dup2(writer, 2)
"""


def test_nobody_reads_a_complaint(fresh):
    """In a process of its own: Python writes what is left when it ends."""
    assert fresh(UNREAD + "print('something')").returncode in (1, 120)  # as Python would end
    command = "sys.argv.append('xyz'); runpy.run_module('fadeout', run_name='__main__', alter_sys=True)"
    assert fresh(UNREAD + command).returncode == 2


def test_nobody_reads_a_run(monkeypatch, capsys, tmp_path):
    reader, writer = os.pipe()
    arguments = ("run", "digits", "--method", "gmp", "--epochs", "3", "--steps", "2")

    class Pipe(io.TextIOWrapper):
        lines = 0

        def write(self, text):
            Pipe.lines += text.count("\n")
            if Pipe.lines == 2:  # the reader has seen the first, and is gone
                os.close(reader)
            return super().write(text)

    with Pipe(open(writer, "wb", buffering=0), write_through=True) as pipe:
        assert main_with_output(monkeypatch, pipe, *arguments) == 130
    assert "stopped, since nobody reads what it prints; its state is in runs" in capsys.readouterr().err
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "checkpoint").exists()
    assert not (folder / "result.json").exists()


def test_a_disk_too_full_for_what_is_printed(monkeypatch, capsys):
    with open("/dev/full", "w") as full:
        assert main_with_output(monkeypatch, full, "list") == 2
    assert "No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["ascii", "latin1", "cp1252"])
def test_a_terminal_that_is_not_utf8(monkeypatch, tmp_path, encoding):
    fadeout.save(nn.Sequential(), tmp_path / "empty.safetensors")
    forge(tmp_path / "snow.safetensors", "schnee\u2603.weight", [4])
    screen = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    assert main_with_output(monkeypatch, screen, "inspect", "snow.safetensors") == 0
    assert rb"schnee\u2603" in screen.buffer.getvalue()


def test_a_closed_output(monkeypatch):
    assert main_with_output(monkeypatch, None, "--version") == 0


def test_a_device_with_a_number_resumes(tmp_path):
    from fadeout.experiments.execute import Stopped, execute

    one, seen = Run(method="gmp", epochs=2, steps=2), []
    with pytest.raises(Stopped):
        execute(one, tmp_path, device="cpu:0", stop=lambda: True)
    record = execute(one, tmp_path, device="cpu:0", watch=lambda now: seen.append(now["step"]))
    assert seen == [2, 3, 4]
    torch.testing.assert_close(record["after"], execute(one, tmp_path / "alone")["after"])
