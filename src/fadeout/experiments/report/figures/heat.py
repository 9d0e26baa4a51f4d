"""Heat maps of a grid over the two ends of the paper's a: ours, and the paper's beside it."""

import math
from collections.abc import Callable, Sequence
from functools import partial

from fadeout._checks import extra
from fadeout.experiments.report.figures.canvas import Plot, draw_svg
from fadeout.experiments.report.formatting import joined, number, percent, strength
from fadeout.experiments.report.groups import Grid, Group, grids
from fadeout.experiments.report.styles import COLOURS

with extra("experiments"):
    from matplotlib import colormaps
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize, to_hex, to_rgb
    from matplotlib.patches import Rectangle

# Both maps keep their order for colour-blind eyes; the second has its middle, no change, in white.
_METRICS = {
    "after": ("accuracy after removal, %", "cividis"),
    "change": ("change through removal, points", "RdBu"),
}
_ON_DARK, _ON_LIGHT = "#fefefe", "#101418"  # no role's colours: a cell looks the same on a dark page


def heat_maps(groups: Sequence[Group], salt: str) -> list[Plot]:
    """For each setup, target and setting: accuracy after removal and its change, ours and the paper's."""
    plots = []
    for grid in grids(groups):
        cells, first = grid.cells, grid.first
        if not first.records:
            continue
        title = joined(first.where, f"{percent(first.sparsity)} removed", first.note)
        size = (max(4.2, 1.1 + 0.62 * len(grid.a_maxs)), 0.9 + 0.4 * len(grid.a_mins))
        for metric, (name, colours) in _METRICS.items():
            ours = {k: g.estimates[metric].mean for k, g in cells.items() if metric in g.estimates}
            theirs = {k: g.published[metric] for k, g in cells.items() if metric in g.published}
            scale = _scale(metric, [*ours.values(), *theirs.values()])
            colour = partial(_colour, colours=colormaps[colours], scale=scale)
            for who, values in (("ours", ours), ("the paper", theirs)):
                if values:
                    draw = partial(_draw_map, grid=grid, values=values, colour=colour, ours=who == "ours")
                    label, here = f"{title}: {name}, {who}", list(cells.values())
                    svg = draw_svg(size, draw, label, here, f"{salt}-{len(plots)}")
                    plots.append(Plot(label, first.mark if who == "ours" else "", svg))
    return plots


def _scale(metric: str, values: Sequence[float | None]) -> Normalize:
    finite = [value for value in values if value is not None and math.isfinite(value)] or [0.0]
    if metric == "change":
        reach = max(1.0, *(abs(value) for value in finite))
        return Normalize(-reach, reach)
    return Normalize(min(finite), max(max(finite), min(finite) + 1))


def _colour(value: float, colours: Colormap, scale: Normalize) -> tuple[str, str]:
    """Of the cell, and of the number in it."""
    fill = to_hex(colours(scale(value)))
    return fill, _ON_LIGHT if _luminance(fill) > 0.3 else _ON_DARK


def _draw_map(axes: Axes, grid: Grid, values: dict, colour: Callable, *, ours: bool) -> None:
    """A coloured cell with its number for each value that is known."""
    lows, highs = grid.a_mins, grid.a_maxs
    for key, group in grid.cells.items():
        x, y = highs.index(key[1]), lows.index(key[0])
        value = values.get(key)
        if value is not None and math.isfinite(value):
            text, (fill, ink) = number(value), colour(value)
        else:
            missing = "failed" if ours and group.failed else ""
            text, fill, ink = "none" if key in values else missing, COLOURS["paper"], COLOURS["soft"]
        link = f"#{group.anchor}" if group.anchor else None
        cell = Rectangle((x, y), 1, 1, facecolor=fill, edgecolor=COLOURS["paper"], linewidth=1.5, url=link)
        axes.add_patch(cell)
        axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", color=ink, fontsize=8.5)
    axes.set_xlim(0, len(highs))
    axes.set_ylim(len(lows), 0)
    axes.set_xticks([x + 0.5 for x in range(len(highs))], [strength(a) for a in highs])
    axes.set_yticks([y + 0.5 for y in range(len(lows))], [strength(a) for a in lows])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xlabel("a_max")
    axes.set_ylabel("a_min")


def _luminance(colour: str) -> float:
    return sum(w * part**2.2 for w, part in zip((0.2126, 0.7152, 0.0722), to_rgb(colour), strict=True))
