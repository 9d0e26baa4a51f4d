"""The display of many runs: how far they are, how long still, and charts where there is room."""

import io

from rich.console import Console

from fadeout.cli.sweep_display import SweepDisplay
from fadeout.experiments.progress import Progress
from fadeout.experiments.run import Run

RUN = Run(epochs=10)
NOW = {"step": 25, "steps": 100, "seconds": 10.0, "loss": 0.5, "top1": 91.25, "epochs": 10}
TESTS = [{"epoch": 0, "top1": 80.0}, {"epoch": 1, "top1": 91.25}]
DONE = Progress(Run(epochs=10, seed=1), "done", record={"status": "done", "seconds": 40.0, "after": 97.5})
STATES = [
    Progress(RUN, "running", NOW, 90.0, 100.0, TESTS),
    DONE,
    Progress(Run(epochs=10, seed=2), "silent", NOW, 0.0, 10.0),
    Progress(Run(epochs=10, seed=3), "running", {}, 100.0, 100.0),
    Progress(Run(epochs=20, seed=4), "waiting"),
    Progress(Run(epochs=10, seed=5), "failed", record={"status": "failed"}),
]


def display_of(states, jobs=None, width=140, height=40):
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)
    return SweepDisplay(console, lambda: states, jobs, clock=lambda: 100.0), console


def shown(states, **size):
    one, console = display_of(states, **size)
    with console.capture() as captured:
        console.print(one._render())
    return captured.get()


def test_everything_at_a_glance():
    text = shown(STATES)
    assert "1 of 6 runs, 1 failed" in text
    assert "30 s left  test 91.25 %  loss 0.500" in text
    assert "no sign for 1 min 30 s" in text
    assert "begins" in text
    assert "auto 90 %, seed 0" in text  # of the chart of the trainings
    assert "in the end, %" in text
    # one worker is free after 30 seconds, the other after 40; one rest of 30, and one run of 80 seconds
    assert "about 2 min 0 s left" in text


def test_fits_a_small_terminal():
    for line in shown(STATES, width=60, height=12).splitlines():
        assert len(line) <= 60
    assert "test accuracy" not in shown(STATES, width=60, height=12)


def test_how_long_it_takes():
    assert display_of(STATES)[0].left() == "about 2 min 0 s left"
    assert display_of([DONE])[0].left() == ""
    assert display_of([Progress(RUN, "waiting")])[0].left() == "nobody is at it"
    assert display_of([Progress(RUN, "waiting")], jobs=2)[0].left() == ""
    assert display_of([DONE, Progress(RUN, "waiting")], jobs=1)[0].left() == "about 40 s left"


def test_over():
    assert display_of([DONE, STATES[-1]])[0].over
    assert not display_of(STATES)[0].over


def test_live_shows_and_says():
    one, console = display_of([DONE])
    with one:
        one.say("1/1  done")
    text = console.file.getvalue()
    assert "1 of 1 runs" in text
    assert "1/1  done\n" in text.replace("\r", "")
