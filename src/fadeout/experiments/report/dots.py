"""The plot of a table: a dot for each row, the paper's hollow."""

from collections.abc import Sequence
from itertools import groupby

from fadeout._checks import extra
from fadeout.experiments.report import words
from fadeout.experiments.report.groups import Group
from fadeout.experiments.report.plots import Plot, accuracies, bars, drawn, points
from fadeout.experiments.report.styles import COLOURS, role

with extra("experiments"):
    from matplotlib.axes import Axes


def dots(groups: Sequence[Group], salt: str) -> list[Plot]:
    """For each place, accuracy after removal, or seconds if the paper has those: a row for each group."""
    plots = []
    metric = "seconds" if any("seconds" in group.published for group in groups) else "after"
    for number, (place, same) in enumerate(groupby(groups, lambda group: group.place)):
        here = [g for g in same if g.done or g.published.get(metric) is not None]
        if any(group.done for group in here):
            size = (4.5, 0.8 + 0.38 * len(here))
            svg = drawn(size, f"{salt}-{number}", here, lambda axes, here=here: _dots(axes, here, metric))
            plots.append(Plot(words.where(place), words.badges(here), svg))
    return plots


def _dots(axes: Axes, groups: list[Group], metric: str) -> None:
    mixed = len({words.mark(group) for group in groups if group.records}) > 1
    values = []
    for row, group in enumerate(groups):
        look, link = role(group.method), f"#{group.anchor}"
        estimate, theirs = group.estimate(metric), group.published.get(metric)
        if theirs is not None:
            points(axes, [theirs], [row], look, [link if group.anchor else None], hollow=True, zorder=3)
            values.append(theirs)
        if estimate:
            spread = bars([estimate], limited=metric == "after")
            line = {"ecolor": COLOURS[look], "elinewidth": 1.2, "capsize": 2.5}
            axes.errorbar([estimate.mean], [row], xerr=spread, fmt="none", **line)
            points(axes, [estimate.mean], [row], look, [link], zorder=4)
            values.append(estimate.mean)
        mark = words.mark(group) if mixed else ""
        name = ", ".join(part for part in (words.what(group), mark) if part)
        # above its dot, so that the axis has the whole width
        axes.text(0, row - 0.22, name, transform=axes.get_yaxis_transform(), va="bottom", fontsize=8.5)
    if metric == "after":
        accuracies(axes, values, "x")
    else:
        axes.set_xlim(left=0)
        axes.grid(axis="x", color=COLOURS["rule"], linewidth=0.8)
    axes.set_yticks([])
    axes.set_ylim(len(groups) - 0.5, -0.7)
    axes.tick_params(length=0)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("accuracy after removal, %" if metric == "after" else "seconds an epoch")
