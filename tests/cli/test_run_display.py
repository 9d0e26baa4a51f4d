"""The live display: bars on a terminal, lines where there is none."""

import io

import pytest
from rich.console import Console

from fadeout.cli.run_display import Pace, RunDisplay


class Pruner:
    fade = 0.25


def figures(step, top1=None):
    return {
        **{"phase": "train", "epoch": (step - 1) // 2, "epochs": 3, "in_epoch": 2, "step": step, "steps": 6},
        **{"loss": 1.5, "top1": top1, "sparsity": 0.5, "factor": 0.9, "pruner": Pruner()},
    }


def shown(terminal, steps=None):
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=120)
    with RunDisplay(console, steps) as display:
        display.begin("fadeout 90 %")
        for step in range(1, 7):
            display(figures(step, top1=97.5 if step > 2 else None))
        display.end("fadeout 90 %: done")
    return text.getvalue()


def test_a_line_for_each_test_of_a_run():
    lines = shown(terminal=False).splitlines()
    assert lines == [
        "train: epoch 2/3  loss 1.500  test 97.50 %  sparsity 50.0%",
        "train: epoch 3/3  loss 1.500  test 97.50 %  sparsity 50.0%",
        "fadeout 90 %: done",
    ]


def test_a_line_for_each_of_several_runs():
    assert shown(terminal=False, steps=6).splitlines() == ["fadeout 90 %: done"]


@pytest.mark.parametrize("steps", [None, 60])
def test_bars(steps):
    text = shown(terminal=True, steps=steps)
    assert "fadeout 90 %" in text
    assert "6/6" in text
    assert "factor 0.900  fade 2e-01" in text
    assert ("all trainings" in text) == (steps is not None)
    assert ("6/60" in text) == (steps is not None)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_a_resumed_run_is_not_taken_for_a_fast_one():
    """From step 50 of 100 on, at two steps a second: after ten more, 20 seconds are left."""
    clock, pace = Clock(), Pace(Clock())
    pace._clock = clock
    for step in range(50, 61):
        pace.note(step)
        clock.now += 0.5
    clock.now -= 0.5
    pace.note(60)
    assert pace.speed == 2
    text = io.StringIO()
    clock.now = 0.0
    with RunDisplay(Console(file=text, force_terminal=True, width=120, height=30), clock=clock) as display:
        for step in range(50, 61):
            display(figures(step) | {"steps": 100})
            clock.now += 0.5 * (step < 60)
    assert "2.0 steps/s" in text.getvalue()
    assert "20 s left" in text.getvalue()


@pytest.mark.parametrize(("width", "height", "charts"), [(120, 30, 2), (60, 30, 1), (40, 30, 0), (120, 9, 0)])
def test_charts_where_there_is_room(width, height, charts):
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=width, height=height, color_system=None)
    with RunDisplay(console) as display:
        for step in range(1, 7):
            display(figures(step, top1=97.5))
    assert max(line.count("end of training") for line in text.getvalue().splitlines()) == charts
