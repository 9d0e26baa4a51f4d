"""SVGs that a page can hold, and axes of accuracies."""

import math

import pytest
from support.reports import record, section

from fadeout.experiments.report.figures.canvas import (
    draw_legend,
    draw_points,
    draw_svg,
    set_accuracy_axis,
    spread,
)
from fadeout.experiments.report.group_runs import group_runs
from fadeout.experiments.report.statistics import Estimate


def test_an_svg_has_roles_for_colours_and_links_inside_the_page():
    groups = group_runs(section([record(80.0)]))

    def draw(axes):
        draw_points(axes, [0.5], [0.5], groups[0].look, groups, zorder=3)

    svg = draw_svg((2, 2), draw, "what <it> shows", groups)
    assert svg.startswith('<svg role="group" aria-label="what &lt;it&gt; shows" viewBox=')
    assert "var(--method-swd)" in svg
    assert "#04955e" not in svg
    said = "SWD, 90 % removed: 80.00 (1 seed)"
    assert f'<a href="#{groups[0].anchor}" aria-label="{said}"><title>{said}</title>' in svg
    for absent in ("<?xml", "<metadata", "http:", "target=", '<g id="'):
        assert absent not in svg.replace("http://www.w3.org", "")
    assert draw_svg((2, 2), draw, "what <it> shows", groups) == svg
    assert draw_svg((2, 2), draw, "what <it> shows", groups, "another salt") != svg


@pytest.mark.parametrize(("lines", "height"), [(3, 2.0), (13, 2.0 + 0.19 * 23)])
def test_a_figure_grows_with_its_legend(lines, height):
    def draw(axes):
        for number in range(lines):  # each in a row of its own, or in two
            axes.plot([], [], label=f"{number} " + "what sets it apart " * (4 if lines > 3 else 2))
        draw_legend(axes)

    assert f'viewBox="0 0 288 {72 * height:g}"' in draw_svg((4, 2), draw)


def test_bars_end_at_the_limit():
    estimates = [
        Estimate(99.8, 0.5),
        Estimate(50.0, 1.0),
        Estimate(1.0, None),
        Estimate(1, math.nan),
    ]
    below, above = spread(estimates)
    assert below == [0.5, 1.0, 0.0, 0.0]
    assert above == pytest.approx([0.2, 1.0, 0.0, 0.0])
    assert spread(estimates, math.inf) == [below, below]


@pytest.mark.parametrize("axis", ["x", "y"])
def test_high_accuracies_are_stretched(axis):
    found = {}

    def draw(axes, values):
        set_accuracy_axis(axes, values, axis)
        found[values[0]] = (axes.get_xscale(), axes.get_yscale())["xy".index(axis)]

    for values in ([98.0, 99.0], [70.0, 80.0], [math.nan]):
        draw_svg((2, 2), lambda axes, values=values: draw(axes, values))
    assert list(found.values()) == ["function", "linear", "function"]
