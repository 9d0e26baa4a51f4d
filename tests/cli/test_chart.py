"""Charts of braille: points where they belong, and none where there is no room."""

import io
import math

import pytest
from rich.console import Console

from fadeout.cli.chart import Chart, side_by_side


def drawn(chart, width=28):
    console = Console(file=io.StringIO(), width=width, height=40, force_terminal=False, color_system=None)
    with console.capture() as captured:
        console.print(chart)
    return captured.get().splitlines()


def test_points_where_they_belong():
    lines = drawn(Chart("loss", {"": [(0, 1.0), (1, 3.0)]}, ends=("start", "end"), joined=False))
    assert lines[0].strip() == "loss"
    assert lines[1] == "       3                   \u2808"  # the upper right of the last character
    assert lines[7].rstrip() == "       1 \u2840"  # the lower left of the first
    assert lines[8] == "         start           end"
    assert all(not line.strip() for line in lines[2:7])


def test_joined_by_a_straight_line():
    lines = drawn(Chart("loss", {"": [(0, 1.0), (1, 3.0)]}))
    inked = [line[9:].strip() for line in lines[1:8]]
    assert all(inked)
    starts = [len(line) - len(line.lstrip()) for line in (line[9:] for line in lines[1:8])]
    assert starts == sorted(starts, reverse=True)


@pytest.mark.parametrize("points", [[], [(0, 2.0)], [(0, math.nan), (1, math.inf), (2, 1.0)]])
def test_what_has_no_range(points):
    assert len(drawn(Chart("loss", {"": points}))) == 9


@pytest.mark.parametrize(
    ("width", "height", "encoding", "room"),
    [
        (140, 40, "utf-8", 2),
        (80, 40, "utf-8", 1),
        (40, 40, "utf-8", 0),
        (140, 10, "utf-8", 0),
        (140, 40, "ascii", 0),
    ],
)
def test_room(width, height, encoding, room):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, height=height, force_terminal=True)
    grids = side_by_side(console, [Chart("loss", {"": [(0, 1.0)]})] * 5, others=3)
    assert sum(len(grid.columns) for grid in grids) == room
