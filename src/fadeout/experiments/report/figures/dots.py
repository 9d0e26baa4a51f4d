"""The figure of a table: a dot for each row, the paper's hollow."""

import math
from collections.abc import Sequence
from functools import partial
from textwrap import fill

from matplotlib.axes import Axes

from fadeout.experiments.report.figures import canvas
from fadeout.experiments.report.figures.canvas import Plot, draw_points
from fadeout.experiments.report.formatting import joined
from fadeout.experiments.report.groups import Group


def dots(groups: Sequence[Group], salt: str) -> list[Plot]:
    """For each setup, accuracy after removal, or seconds if the paper has those: a row for each group."""
    metric = "seconds" if any("seconds" in group.published for group in groups) else "after"
    shown = [group for group in groups if group.done or group.published.get(metric) is not None]
    draw = partial(_draw_dots, metric=metric)
    return canvas.plot_setups(shown, draw, _height, salt)


def _height(groups: Sequence[Group]) -> float:
    lines = 1 + max(name.count("\n") for name in _names(groups))
    return 0.8 + (0.24 + 0.14 * lines) * len(groups)


def _names(groups: Sequence[Group]) -> list[str]:
    """What stands above each row, in lines that fit into the width."""
    mixed = len({group.mark for group in groups if group.records}) > 1
    return [fill(joined(group.title, group.mark if mixed else ""), _WIDTH) for group in groups]


_WIDTH = 62  # characters


def _draw_dots(axes: Axes, groups: list[Group], metric: str) -> None:
    values = []
    for row, (group, name) in enumerate(zip(groups, _names(groups), strict=True)):
        estimate, theirs = group.estimates.get(metric), group.published.get(metric)
        if theirs is not None:
            draw_points(axes, [theirs], [row], group.look, [group], hollow=True, zorder=3)
            values.append(theirs)
        if estimate:
            look, bars = group.look, canvas.spread([estimate], 100.0 if metric == "after" else math.inf)
            axes.errorbar([estimate.mean], [row], None, bars, "none", elinewidth=1.2, ecolor=look.light)
            draw_points(axes, [estimate.mean], [row], look, [group], zorder=4)
            values.append(estimate.mean)
        # above its dot, so that the axis has the whole width
        axes.text(0, row - 0.22, name, transform=axes.get_yaxis_transform(), va="bottom", fontsize=8.5)
    if metric == "after":
        canvas.set_accuracy_axis(axes, values, "x")
    else:
        axes.set_xlim(left=0)
        axes.set_axisbelow(True)
        axes.grid(axis="x")
    axes.set(yticks=[], ylim=(len(groups) - 0.5, -0.7))
    axes.set_xlabel("accuracy after removal, %" if metric == "after" else "seconds an epoch")
