"""Heat maps of a grid over the two ends of the paper's a: ours, and the paper's beside it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_hex, to_rgb
from matplotlib.patches import Rectangle

from fadeout.experiments.report.figures.canvas import Plot, draw_svg
from fadeout.experiments.report.formatting import joined, number, percent, strength
from fadeout.experiments.report.groups import Grid, Group, grids
from fadeout.experiments.report.styles import COLOURS

# Both maps keep their order for colour-blind eyes; the second has its middle, no change, in white.
_METRICS = {
    "after": ("accuracy after removal, %", "cividis"),
    "change": ("change through removal, points", "RdBu"),
}
_ON_DARK, _ON_LIGHT = "#fefefe", "#101418"  # no role's colours: a cell looks the same on a dark page
Values = Mapping[tuple[float | None, float | None], float | None]


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
            ours = {key: g.estimates[metric].mean for key, g in cells.items() if metric in g.estimates}
            theirs = {key: g.published[metric] for key, g in cells.items() if metric in g.published}
            rgba = ScalarMappable(_norm(metric, [*ours.values(), *theirs.values()]), colours).to_rgba
            for who, values, mark in (("ours", ours, first.mark), ("the paper", theirs, "")):
                if values:
                    draw = partial(_draw_map, grid=grid, values=values, rgba=rgba, ours=who == "ours")
                    label = f"{title}: {name}, {who}"
                    svg = draw_svg(size, draw, label, list(cells.values()), f"{salt}-{len(plots)}")
                    plots.append(Plot(label, mark, svg))
    return plots


def _norm(metric: str, values: Sequence[float | None]) -> Normalize:
    finite = [value for value in values if value is not None and np.isfinite(value)] or [0.0]
    reach = max(1.0, *map(abs, finite))
    low, high = min(finite), max(*finite, min(finite) + 1)
    return Normalize(-reach, reach) if metric == "change" else Normalize(low, high)


def _draw_map(axes: Axes, grid: Grid, values: Values, rgba: Callable[..., Any], *, ours: bool) -> None:
    """A coloured cell with its number for each value that is known."""
    rows, columns = grid.a_mins, grid.a_maxs
    for key, group in grid.cells.items():
        x, y, value = columns.index(key[1]), rows.index(key[0]), values.get(key)
        if value is not None and np.isfinite(value):
            text, fill = number(value), to_hex(rgba(value))
            luminance = np.dot((0.2126, 0.7152, 0.0722), np.power(to_rgb(fill), 2.2))
            ink = _ON_LIGHT if luminance > 0.3 else _ON_DARK
        else:
            text = "none" if key in values else "failed" if ours and group.failed else ""
            fill, ink = COLOURS["paper"], COLOURS["soft"]
        link = f"#{group.anchor}" if group.anchor else None
        cell = Rectangle((x, y), 1, 1, facecolor=fill, edgecolor=COLOURS["paper"], linewidth=1.5, url=link)
        axes.add_patch(cell)
        axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", color=ink, fontsize=8.5)
    axes.set(xlim=(0, len(columns)), ylim=(len(rows), 0), xlabel="a_max", ylabel="a_min")
    axes.set_xticks(np.arange(len(columns)) + 0.5, [strength(a) for a in columns])
    axes.set_yticks(np.arange(len(rows)) + 0.5, [strength(a) for a in rows])
    axes.spines["bottom"].set_visible(False)
