"""All that is drawn, each figure as an SVG inside a page."""

from fadeout.experiments.report.figures.curves import curves
from fadeout.experiments.report.figures.dots import dots
from fadeout.experiments.report.figures.heat import heat_maps

FIGURES = {"curve": curves, "grid": heat_maps, "table": dots}
"""For each kind of section, what draws its figures."""
