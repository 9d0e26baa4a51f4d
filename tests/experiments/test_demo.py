"""The demo as an experiment: its runs, and that one seed gives one result."""

from dataclasses import replace

import torch

from fadeout._checks import MissingExtraError
from fadeout.experiments.catalogue import EXPERIMENTS
from fadeout.experiments.data import digits
from fadeout.experiments.demo import (
    Settings,
    Shrunk,
    _milliseconds,
    compare,
    shrunk_cells,
    shrunk_headings,
)


class Silent:
    """A display that only remembers."""

    def __init__(self):
        self.begun, self.steps, self.ended = [], [], []

    def begin(self, title):
        self.begun.append(title)

    def __call__(self, now):
        self.steps.append(now)

    def end(self, line):
        self.ended.append(line)


def test_it_is_an_experiment():
    runs = EXPERIMENTS["demo"].runs()
    assert runs == Settings().compared() + Settings().cut()
    assert {run.data for run in runs} == {"digits"}
    assert [run.norm for run in runs] == [False] * 13 + [True] * 3
    assert [run.multiple_of for run in runs] == [None] * 14 + [8] * 2


def test_one_seed_gives_one_result():
    settings = Settings(epochs=1, targets=(0.9,), rounds=2, round_epochs=1, shown=0.9)
    displays, found = (Silent(), Silent()), []
    for number, display in enumerate(displays):
        torch.rand(number)
        outcomes, fading = compare(settings, 5, display)
        found.append(([replace(outcome, seconds=0.0) for outcome in outcomes], fading))
    assert found[0] == found[1]
    assert [outcome.method for outcome in found[0][0]] == ["dense", "one-shot", "iterative", "fadeout"]
    # The display hears of every step; the training of the dense network is shared, not repeated.
    display, steps = displays[0], digits().steps(settings.batch_size)
    assert display.begun == ["dense", "one-shot 90 %", "iterative 90 %", "fadeout 90 %"]
    assert len(display.ended) == 4
    compared = settings.total_epochs - (1 + len(settings.shrunk)) * settings.epochs
    assert len(display.steps) == compared * steps
    epochs = [now["epoch"] for now in display.steps if now["step"] % steps == 0]
    assert epochs == [0, 1, 2, 0]


def test_milliseconds_stand_beside_what_they_bring():
    dense = Shrunk(0.0, 98.0, 98.0, 98.0, 38_506, 119_626, 158_168, {"pytorch": 6.0, "onnxruntime": 1.5})
    small = Shrunk(0.9, 97.0, 97.0, 97.0, 3754, 11_074, 20_040, {"pytorch": 2.0, "onnxruntime": 0.6})
    assert shrunk_cells(small, dense)[-3:] == ["20.0", "2.00 3.0x", "0.60 2.5x"]
    headings = shrunk_headings(dense)
    assert headings[-2:] == ["ms in\nPyTorch", "ms in\nonnx-\nruntime"]
    assert len(headings) == len(shrunk_cells(dense, dense))


def test_an_engine_that_is_not_installed_is_left_out(monkeypatch):
    def time(networks, example, engine):
        if engine == "onnxruntime":
            raise MissingExtraError("not here")
        return dict.fromkeys(networks, 0.002)

    monkeypatch.setattr("fadeout.experiments.demo.time_networks", time)
    assert _milliseconds([torch.nn.Identity()] * 2, torch.zeros(1, 2)) == [{"pytorch": 2.0}] * 2
