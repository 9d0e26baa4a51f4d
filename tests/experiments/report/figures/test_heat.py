"""Heat maps of a grid of strengths."""

import math

from support import reports
from support.reports import printed, record, section

from fadeout.experiments.report.figures.heat import heat_maps
from fadeout.experiments.report.group_runs import group_runs


def test_ours_and_the_papers_beside_each_other():
    drawn = heat_maps(group_runs(reports.grid()), "salt")
    assert len(drawn) == 2 * 2 * 2
    assert drawn[0].title == "LeNet-5 on MNIST, elements, 90 % removed: accuracy after removal, %, ours"
    assert drawn[1].title == "LeNet-5 on MNIST, elements, 90 % removed: accuracy after removal, %, the paper"
    assert [bool(plot.mark) for plot in drawn[:2]] == [True, False]
    assert "none</text>" in drawn[1].svg  # the paper's hole
    assert [("failed</text>" in plot.svg) for plot in drawn] == [False] * 4 + [True, False, True, False]


def test_what_is_not_finite_has_no_colour():
    made = [record(value, a_min=1.0, a_max=a) for value, a in ((80.0, 10.0), (math.nan, 100.0))]
    after, _change = heat_maps(group_runs(section(made, kind="grid")), "salt")
    assert "80.00</text>" in after.svg
    assert "none</text>" in after.svg


def test_a_grid_that_only_the_paper_has_is_not_drawn():
    published = [printed("swd", 0.9, 70.0, a_min=1.0, a_max=10.0)]
    assert heat_maps(group_runs(section([], published, "grid")), "salt") == []
