"""The figure of kept sets: how much of the final one is kept already, over training."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from fadeout.experiments.report.figures.canvas import Plot, draw_legend, plot_setups
from fadeout.experiments.report.figures.curves import lines, looks
from fadeout.experiments.report.groups import Group, alike


def overlaps(groups: Sequence[Group], salt: str) -> list[Plot]:
    """For each setup, at the target that most methods have, a line for each: at 100 % all is decided."""
    known = [group for group in groups if any("overlap" in record for record in group.done)]
    shown = []
    for here in alike(known, lambda group: group.setup).values():
        targets = alike(here, lambda group: group.sparsity)
        shown += max(targets.values(), key=lambda same: (len(same), same[0].sparsity))
    return plot_setups(
        shown,
        _draw_overlaps,
        lambda here: 4.1,
        f"{salt}-kept",
        lambda here: f"{here[0].removed}: when the kept set is decided",
    )


def _draw_overlaps(axes: Axes, groups: list[Group]) -> None:
    named = lines(groups)
    for (name, members), look in zip(named.items(), looks(named), strict=True):
        runs = [record["overlap"] for group in members for record in group.done if "overlap" in record]
        x, y = 100 * np.mean([run for run in runs if len(run) == len(runs[0])], 0).T  # over the seeds
        front = 4 if members[0].method == "auto" else 3
        axes.plot(x, y, color=look.light, linewidth=1.8, zorder=front, label=name)[0].set(
            marker=look.marker, markevery=max(1, len(x) // 8), markeredgecolor=look.rim, clip_on=False
        )
    axes.set(
        xlim=(0, 100),
        ylim=(None, 100),
        xlabel="training done, %",
        ylabel="of the final kept set, kept now, %",
    )
    axes.set_axisbelow(True)
    axes.grid(axis="y")
    draw_legend(axes)
