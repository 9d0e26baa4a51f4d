"""The dots of a table."""

import re
from dataclasses import replace

import pytest
from support.reports import printed, record, section

from fadeout.experiments.report.figures.dots import dots
from fadeout.experiments.report.group_runs import group_runs


def test_a_figure_for_each_setup_with_the_papers_dots():
    made = [record(80.0), record(82.0, method="gmp"), record(70.0, model="mlp")]
    drawn = dots(group_runs(section(made, [printed("han", 0.9, 75.0)])), "salt")
    assert [plot.title for plot in drawn] == ["GCN on Cora, elements", "mlp on Cora, elements"]
    for text in (
        "Han et al., 90 % removed",
        "GMP, 90 % removed",
        "SWD, 90 % removed",
        "accuracy after removal, %",
    ):
        assert f"{text}</text>" in drawn[0].svg
    assert drawn[0].svg.count("<a href") == 2  # the paper's leads nowhere
    assert "GMP" not in drawn[1].svg


def test_a_long_name_takes_two_lines_and_more_room():
    groups = group_runs(section([record(80.0), record(82.0, method="gmp")]))
    (short,) = dots(groups, "salt")
    (long,) = dots([replace(group, note="tested " * 8 + "last") for group in groups], "salt")
    assert "GMP, 90 % removed</text>" in short.svg
    assert "tested tested last</text>" in long.svg
    height = {
        plot: float(re.search(r'viewBox="0 0 \S+ ([\d.]+)"', plot.svg)[1]) / 72 for plot in (short, long)
    }
    assert height == {short: pytest.approx(0.8 + 2 * 0.38), long: pytest.approx(0.8 + 2 * 0.52)}


def test_seconds_where_the_paper_has_them():
    (plot,) = dots(
        group_runs(section([record(80.0, epochs=10)], [printed("swd", 0.9, 2.0, "seconds")])), "salt"
    )
    assert "seconds an epoch</text>" in plot.svg


def test_nothing_to_draw():
    assert dots(group_runs(section([record(None)], [printed("han", 0.9, 75.0)])), "salt") == []
