"""All that is drawn, each figure as an SVG inside a page."""

from collections.abc import Sequence

from fadeout.experiments.report.figures.canvas import Plot
from fadeout.experiments.report.figures.curves import curves
from fadeout.experiments.report.figures.dots import dots
from fadeout.experiments.report.figures.heat import heat_maps
from fadeout.experiments.report.figures.overlap import overlaps
from fadeout.experiments.report.groups import Group

_FIGURES = {"curve": curves, "grid": heat_maps, "table": dots}


def figures(kind: str, groups: Sequence[Group], salt: str) -> list[Plot]:
    """The figures of a section: those of its kind, and when each method decides, where that is known."""
    listed = [group for group in groups if kind != "grid" or not any(group.strengths)]
    return _FIGURES[kind](groups, salt) + overlaps(listed, salt)
