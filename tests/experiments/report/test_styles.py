"""Methods are told apart, by colour-blind eyes too, and figures have the colours of the pages."""

import math

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from support.reports import record, section

from fadeout.experiments.report.figures.canvas import draw_points
from fadeout.experiments.report.group_runs import group_runs
from fadeout.experiments.report.styles import COLOURS, METHODS, OTHER, STYLE


def test_every_method_has_a_look_of_its_own():
    every = [*METHODS.values(), OTHER]
    for part in ("label", "light", "dark", "marker"):
        assert len({getattr(look, part) for look in every}) == len(every)
    assert len(set(COLOURS.values())) == len(COLOURS)  # or a page could not exchange them one by one
    (group,) = group_runs(section([record(80.0, method="no such method")]))
    assert (group.look, group.label) == (OTHER, "no such method")


def test_every_mark_is_seen():
    figure = Figure(figsize=(9, 0.3), dpi=300)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-0.5, 29.5), ylim=(-1, 1))
    group = group_runs(section([record(80.0)]))
    looks = [*METHODS.values(), OTHER]
    for number, look in enumerate(looks):
        draw_points(axes, [number], [0.0], look, group, zorder=3)
    figure.canvas.draw()
    image = np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(int)
    for number, look in enumerate(looks):
        colour = [int(look.light[i : i + 2], 16) for i in (1, 3, 5)]
        own = (np.abs(image[:, 90 * number : 90 * (number + 1)] - colour).max(-1) < 40).sum()
        assert own >= 100, look


MAIN = ("auto", "swd", "gmp", "han", "liu", "rewinding", "one_shot", "dense")


@pytest.mark.parametrize("page_is", ["light", "dark"])
@pytest.mark.parametrize("blind", ["protan", "deutan"])
def test_methods_that_are_often_compared_differ_for_colour_blind_eyes(page_is, blind):
    seen = {m: simulated(getattr(METHODS[m], page_is), blind) for m in MAIN}
    for one in seen:
        for other in seen:
            assert one == other or math.dist(seen[one], seen[other]) > 12, (one, other)


def simulated(colour, blind):
    """CIELAB coordinates of a colour as seen with full dichromacy (Machado, Oliveira and Fernandes, 2009)."""
    matrix = {
        "protan": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
        "deutan": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    }[blind]
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    for step in (matrix, to_xyz):
        linear = [max(0.0, sum(w * c for w, c in zip(row, linear, strict=True))) for row in step]
    x, y, z = (math.cbrt(c / white) for c, white in zip(linear, (0.9505, 1, 1.089), strict=True))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def test_the_style_of_figures_has_the_colours_of_roles():
    found = matplotlib.rc_params_from_file(STYLE, use_default_template=False)
    colours = {name: value for name, value in found.items() if name.endswith("color")}
    assert len(colours) == 8
    assert set(colours.values()) == {COLOURS[role] for role in ("ink", "soft", "rule")}
