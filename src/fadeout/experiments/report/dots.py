"""The plot of a table: a dot for each row, the paper's hollow."""

from collections.abc import Sequence
from itertools import groupby

from fadeout.experiments.report import words
from fadeout.experiments.report.groups import Group
from fadeout.experiments.report.plots import Plot, accuracies, bars, drawn, points
from fadeout.experiments.report.styles import COLOURS, role
from fadeout.extras import extra

with extra("experiments"):
    from matplotlib.axes import Axes


def dots(groups: Sequence[Group], salt: str) -> list[Plot]:
    """For each place, accuracy after removal: a row for each method and target."""
    plots = []
    for number, (place, same) in enumerate(groupby(groups, lambda group: group.place)):
        here = [g for g in same if g.done or g.published.get("after") is not None]
        if any(group.done for group in here):
            size = (4.5, 0.8 + 0.38 * len(here))
            svg = drawn(size, f"{salt}-{number}", here, lambda axes, here=here: _dots(axes, here))
            plots.append(Plot(words.where(place), words.badges(here), svg))
    return plots


def _dots(axes: Axes, groups: list[Group]) -> None:
    mixed = len({words.mark(group) for group in groups if group.records}) > 1
    values, names = [], []
    for row, group in enumerate(groups):
        look, link = role(group.method), f"#{group.anchor}"
        estimate, theirs = group.estimate("after"), group.published.get("after")
        if theirs is not None:
            points(axes, [theirs], [row], look, [link if group.anchor else None], hollow=True, zorder=3)
            values.append(theirs)
        if estimate:
            spread = bars([estimate])
            axes.errorbar(
                [estimate.mean],
                [row],
                xerr=spread,
                fmt="none",
                ecolor=COLOURS[look],
                elinewidth=1.2,
                capsize=2.5,
            )
            points(axes, [estimate.mean], [row], look, [link], zorder=4)
            values.append(estimate.mean)
        mark = words.mark(group) if mixed else ""
        names.append(", ".join(part for part in (words.what(group), mark) if part))
    accuracies(axes, values, "x")
    for row, name in enumerate(names):  # above its dot, so that the axis has the whole width
        axes.text(0, row - 0.22, name, transform=axes.get_yaxis_transform(), va="bottom", fontsize=8.5)
    axes.set_yticks([])
    axes.set_ylim(len(groups) - 0.5, -0.7)
    axes.tick_params(length=0)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("accuracy after removal, %")
