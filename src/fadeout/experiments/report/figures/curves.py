"""The figure of a curve: accuracy against weights left, the paper's dashed."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from matplotlib.axes import Axes

from fadeout.experiments.report.figures import canvas
from fadeout.experiments.report.figures.canvas import Plot, draw_points
from fadeout.experiments.report.formatting import joined, strength
from fadeout.experiments.report.groups import Group, alike
from fadeout.experiments.report.styles import METHODS, OTHER, Look

_DASHES = (0, (4, 2.5))
_PAPER: dict[str, Any] = {"linewidth": 1.2, "linestyle": _DASHES, "zorder": 2}
_ROOM = 1.3  # before the first point, for the mark of the dense network
_TICKS = (100, 50, 20, 10, 5, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
_ORDER = ("auto", "swd", "gmp", "han", "liu", "rewinding", "one_shot", "plain_decay", "growing_decay", "soft")
_SPARE = [*(METHODS[name] for name in _ORDER), OTHER]  # looks for a method's second line, the strongest first


def curves(groups: Sequence[Group], salt: str) -> list[Plot]:
    """For each setup, accuracy after removal against weights left: a line for each method."""
    return canvas.plot_setups(groups, _draw_curves, lambda _: 4.1, salt)


def lines(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """The points of each line by the line's name: a method, and what tells it apart from its likes."""
    methods = [method for method, _ in {(group.method, group.strengths) for group in groups}]
    mixed = len({group.mark for group in groups if group.records}) > 1

    def name(group: Group) -> str:
        several = methods.count(group.method) > 1 and any(group.strengths)
        strengths = f"{strength(group.a_min)} to {strength(group.a_max)}" if several else ""
        return joined(group.label, strengths, group.note, group.mark if mixed else "")

    return alike(groups, name)


def looks(named: Mapping[str, Sequence[Group]]) -> list[Look]:
    """For each line its method's look; a method's second line has that of an absent one."""
    wanted = [groups[0].look for groups in named.values()]
    spare = cycle([look for look in _SPARE if look not in wanted] or _SPARE)
    return [next(spare) if look in wanted[:i] else look for i, look in enumerate(wanted)]


def _draw_curves(axes: Axes, groups: list[Group]) -> None:
    pruned = [group for group in groups if group.sparsity]
    left = [100 * (1 - group.sparsity) for group in pruned] or [100.0]
    for name, dense in lines([group for group in groups if not group.sparsity]).items():
        for group in dense:
            _draw_level(axes, name, group, max(left) * _ROOM)
    named = lines(pruned)
    for (name, line), look in zip(named.items(), looks(named), strict=True):
        _draw_line(axes, name, line, look)
    ours = [group.estimates["after"].mean for group in groups if "after" in group.estimates]
    theirs = [value for group in groups if (value := group.published.get("after")) is not None]
    canvas.set_accuracy_axis(axes, ours + theirs, "y")
    axes.set_xscale("log")
    axes.set_xlim(max(left) * _ROOM, min(left) / 1.12)
    ticks = [x for x in _TICKS if min(left) * 0.999 <= x <= max(left) * 1.001] or left[:1]
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.minorticks_off()
    axes.set(xlabel="weights left, %", ylabel="accuracy after removal, %")
    canvas.draw_legend(axes)


def _draw_line(axes: Axes, name: str, groups: list[Group], look: Look) -> None:
    """A method over its targets: ours, and the paper's, which is named where there is none of ours."""
    key: dict[str, Any] = {"color": look.light, "marker": look.marker}
    ours = [group for group in groups if "after" in group.estimates]
    theirs = {group.sparsity: group for group in groups if group.published.get("after") is not None}
    x = [100 * (1 - sparsity) for sparsity in theirs]
    y = [group.published["after"] or 0.0 for group in theirs.values()]
    axes.plot(x, y, color=look.light, **_PAPER)
    if not ours:
        axes.plot([], [], **key, linestyle=_DASHES, markerfacecolor="none", label=f"{name}, paper")
    draw_points(axes, x, y, look, list(theirs.values()), hollow=True, zorder=3)
    if ours:
        front = 5 if groups[0].method == "auto" else 4
        estimates = [group.estimates["after"] for group in ours]
        x, y = [100 * (1 - group.sparsity) for group in ours], [estimate.mean for estimate in estimates]
        bars = canvas.spread(estimates)
        axes.errorbar(x, y, bars, fmt="none", elinewidth=1.2, ecolor=look.light, zorder=front)
        axes.plot(x, y, color=look.light, linewidth=1.8, zorder=front)
        axes.plot([], [], **key, linewidth=1.8, markeredgecolor=look.rim, label=name)
        draw_points(axes, x, y, look, ours, zorder=front + 1)


def _draw_level(axes: Axes, name: str, group: Group, x: float) -> None:
    """A network of which nothing was removed: a line across, with a mark at its beginning."""
    look, ours, theirs = METHODS["dense"], group.estimates.get("after"), group.published.get("after")
    if theirs is not None:
        axes.axhline(theirs, color=look.light, label="" if ours else f"{name}, paper", **_PAPER)
        draw_points(axes, [x], [theirs], look, [group], hollow=True, zorder=3)
    if ours:
        axes.axhline(ours.mean, color=look.light, linewidth=1.4, label=name, zorder=3)
        draw_points(axes, [x], [ours.mean], look, [group], zorder=4)
