"""fadeout demo: what it writes and prints, its numbers, and how it stops."""

import io
import json
import re
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
import torch

import fadeout
from fadeout.cli import main
from fadeout.cli.demo import demo
from fadeout.experiments.demo import Settings

pytestmark = pytest.mark.slow  # each demo takes a while; test_main runs one without its packages
FILES = ["figure.png", "figure.svg", "report.html", "results.json", "small.safetensors"]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A quick run: the folder it filled and what it printed."""
    folder, printed = tmp_path_factory.mktemp("demo") / "not" / "there yet", io.StringIO()
    threads = torch.get_num_threads()
    with redirect_stdout(printed):
        demo(folder, seed=1, quick=True)
    assert torch.get_num_threads() == threads
    return folder, printed.getvalue()


def test_it_writes_its_files_and_says_where(done):
    folder, printed = done
    assert sorted(path.name for path in folder.iterdir()) == FILES
    for name in FILES:
        assert str(folder / name) in printed


def test_the_numbers_are_exact(done):
    values = json.loads((done[0] / "results.json").read_text())
    assert values["seed"] == 1
    assert {"fadeout", "python", "torch", "numpy", "scikit-learn"} == set(values["versions"])
    settings, outcomes = values["settings"], values["outcomes"]
    assert [o["sparsity"] for o in outcomes] == [0.0, *settings["targets"] * 3]
    dense, total = outcomes[0], 38_160
    for o in outcomes:
        assert o["total"] == total
        assert total - o["left"] == round(o["sparsity"] * total)
        rounds = settings["rounds"] * settings["round_epochs"] if o["method"] == "iterative" else 0
        assert o["epochs"] == settings["epochs"] + rounds
        if o["method"] == "one-shot":
            assert o["before"] == dense["final"]
        if o["method"] == "fadeout":
            assert o["before"] == o["after"] == o["final"]  # removal is free
    assert dense["final"] > 90


def test_the_table_shows_every_outcome(done):
    folder, printed = done
    for o in json.loads((folder / "results.json").read_text())["outcomes"]:
        numbers = [f"{o[key]:.2f}" for key in ("before", "after", "final")]
        row = rf"{o['method']}\s+" + r"\s+".join([*numbers, f"{o['left']:,}", str(o["epochs"])])
        assert re.search(row, printed)


def test_the_histograms_hold_every_weight(done):
    fading = json.loads((done[0] / "results.json").read_text())["fading"]
    settings = json.loads((done[0] / "results.json").read_text())["settings"]
    assert len(fading["stays"]) == len(fading["goes"]) == settings["epochs"] + 1
    for stays, goes in zip(fading["stays"], fading["goes"], strict=True):
        assert sum(stays) == 1908
        assert sum(goes) == 38_160 - 1908
    assert fading["goes"][0][0] == 0  # at the start nothing is tiny,
    assert fading["goes"][-1] == [38_160 - 1908] + [0] * (len(fading["centres"]) - 1)  # in the end all are


def test_channels_are_cut_out(done):
    folder, printed = done
    dense, *shrunk = json.loads((folder / "results.json").read_text())["shrunk"]
    assert (dense["sparsity"], dense["parameters"]) == (0.0, 38_506)
    for line, target in zip(shrunk, Settings().shrunk, strict=True):
        assert line["sparsity"] == target
        assert line["before"] == line["after"] == line["compact"]  # removal is free, and cutting out is exact
        assert line["parameters"] <= (1 - target) * dense["parameters"]
        assert line["parameters"] > (1 - target - 0.02) * dense["parameters"]
        assert line["operations"] < dense["operations"]
        assert line["bytes"] < dense["bytes"]
        assert f"{line['parameters']:,}" in printed
        for engine, milliseconds in line["milliseconds"].items():
            times = dense["milliseconds"][engine] / milliseconds
            assert f"{milliseconds:.2f} {times:.1f}x" in printed
    small = fadeout.load(folder / "small.safetensors", lambda: fadeout.models.smallcnn(norm=True))
    assert sum(p.numel() for p in small.parameters()) == shrunk[-1]["parameters"]
    assert (folder / "small.safetensors").stat().st_size == shrunk[-1]["bytes"]


def test_the_figures_are_whole(done):
    assert (done[0] / "figure.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert ElementTree.parse(done[0] / "figure.svg").getroot().tag.endswith("svg")


def test_the_report_needs_nothing_else(done):
    page = (done[0] / "report.html").read_text(encoding="utf-8")
    assert "http" not in page
    assert "$" not in page
    assert page.count("<svg") == 2
    assert "A quick run" in page
    assert not re.search(r"#[0-9a-f]{6}", page[page.index("<svg") :])  # the page's colours, light or dark
    balance = Balance()
    balance.feed(page)
    assert balance.open == []


class Balance(HTMLParser):
    """Which elements are open; closing another than the last one fails."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def no_training(monkeypatch):
    def train(*arguments):
        raise AssertionError("it trained")

    monkeypatch.setattr("fadeout.cli.demo.compare", train)


def test_a_place_where_it_cannot_write(tmp_path, capsys, no_training):
    file = tmp_path / "file"
    file.write_text("mine")
    for output, reason in {
        file: f"{file} is a file, not a folder",
        file / "below": f"{file} is a file, not a folder",
        "/proc/fadeout": "No such file or directory",
    }.items():
        with pytest.raises(SystemExit) as end:
            main(["demo", "--output", str(output)])
        complaint = capsys.readouterr().err
        assert end.value.code == 2
        assert complaint.startswith(f"fadeout: cannot write to {output}: ")
        assert reason in complaint
        assert complaint.count("\n") == 1
    assert file.read_text() == "mine"


def test_control_c_leaves_nothing_behind(tmp_path):
    command = [sys.executable, "-m", "fadeout", "demo", "--quick", "--output", str(tmp_path / "out")]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell starts what runs in the background with the signal ignored, and the suite may run there
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("dense")  # it is in the middle of training
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=60)
    assert (process.returncode, complaint) == (130, "fadeout: stopped\n")
    assert list(tmp_path.iterdir()) == []
