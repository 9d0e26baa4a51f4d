"""The figure of kept sets: how much of the final one is kept already, over training."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from fadeout._checks import extra
from fadeout.experiments.report.figures.canvas import Plot, draw_svg, legend
from fadeout.experiments.report.figures.curves import lines, looks
from fadeout.experiments.report.formatting import joined
from fadeout.experiments.report.groups import Group, alike, marks
from fadeout.experiments.report.styles import COLOURS

with extra("experiments"):
    from matplotlib.axes import Axes


def overlaps(groups: Sequence[Group], salt: str) -> list[Plot]:
    """For each setup, at the target that most methods have, a line for each: at 100 % all is decided."""
    plots = []
    known = [group for group in groups if any("overlap" in record for record in group.done)]
    for number, here in enumerate(alike(known, lambda group: group.setup).values()):
        targets = alike(here, lambda group: group.sparsity)
        most = max(targets, key=lambda sparsity: (len(targets[sparsity]), sparsity))
        shown = targets[most]
        title = joined(shown[0].where, f"{shown[0].removed}: when the kept set is decided")
        svg = draw_svg(
            (4.5, 4.1), partial(_draw_overlaps, groups=shown), title, shown, f"{salt}-kept-{number}"
        )
        plots.append(Plot(title, marks(shown), svg))
    return plots


def _draw_overlaps(axes: Axes, groups: list[Group]) -> None:
    named = lines(groups)
    for (name, members), look in zip(named.items(), looks(named), strict=True):
        runs = [record["overlap"] for group in members for record in group.done if "overlap" in record]
        x, y = 100 * np.mean([run for run in runs if len(run) == len(runs[0])], 0).T  # over the seeds
        front = 4 if members[0].method == "auto" else 3
        axes.plot(x, y, color=look.light, linewidth=1.8, zorder=front, label=name)[0].set(
            marker=look.marker, markevery=max(1, len(x) // 8), markeredgecolor=COLOURS["paper"], clip_on=False
        )
    axes.set(
        xlim=(0, 100),
        ylim=(None, 100),
        xlabel="training done, %",
        ylabel="of the final kept set, kept now, %",
    )
    axes.set_axisbelow(True)
    axes.grid(axis="y")
    legend(axes)
