"""The plot of a curve: accuracy against weights left, the paper's dashed."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from fadeout._checks import extra
from fadeout.experiments.report import words
from fadeout.experiments.report.groups import Group
from fadeout.experiments.report.plots import Plot, accuracies, bars, drawn, points
from fadeout.experiments.report.styles import COLOURS, MARKERS, role

with extra("experiments"):
    from matplotlib.axes import Axes

_DASHES = (0, (4, 2.5))
_ROOM = 1.3  # before the first point, for the mark of the dense network


def curves(groups: Sequence[Group], salt: str) -> list[Plot]:
    """For each place, accuracy after removal against weights left: a line for each method."""
    plots = []
    for number, (place, same) in enumerate(groupby(groups, lambda group: group.place)):
        here = list(same)
        if not any(group.done for group in here):
            continue
        svg = drawn((4.5, 4.1), f"{salt}-{number}", here, lambda axes, here=here: _curves(axes, here))
        plots.append(Plot(words.where(place), words.badges(here), svg))
    return plots


def lines(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """The points of each line by the line's name: a method, and what tells it apart from its likes."""
    strong = {m: len({g.strengths for g in groups if g.method == m}) > 1 for m in {g.method for g in groups}}
    mixed = len({words.mark(group) for group in groups if group.records}) > 1
    named: dict[str, list[Group]] = {}
    for group in groups:
        parts = [words.method(group.method)]
        if strong[group.method] and any(group.strengths):
            parts.append(f"{words.strength(group.a_min)} to {words.strength(group.a_max)}")
        parts += [group.note, words.mark(group) if mixed else ""]
        named.setdefault(", ".join(part for part in parts if part), []).append(group)
    return named


def looks(named: Mapping[str, Sequence[Group]]) -> list[str]:
    """For each line its method's colour and marker; a method's second line has those of an absent one."""
    wanted = [role(points[0].method) for points in named.values()]
    spare = [look for look in MARKERS if look not in {*wanted, "dense"}] or list(MARKERS)
    chosen, number = [], 0
    for place, look in enumerate(wanted):
        if look in wanted[:place]:
            look, number = spare[number % len(spare)], number + 1
        chosen.append(look)
    return chosen


def _curves(axes: Axes, groups: list[Group]) -> None:
    pruned = [group for group in groups if group.sparsity]
    estimates = [group.estimate("after") for group in groups]
    values = [e.mean for e in estimates if e] + [
        v for g in groups if (v := g.published.get("after")) is not None
    ]
    left = [100 * (1 - group.sparsity) for group in pruned] or [100.0]
    _levels(axes, [group for group in groups if not group.sparsity], max(left) * _ROOM)
    named = lines(pruned)
    for (name, run), look in zip(named.items(), looks(named), strict=True):
        ours = [(g, e) for g in run if (e := g.estimate("after"))]
        theirs = [(g, v) for g in run if (v := g.published.get("after")) is not None]
        _paper_line(axes, theirs, look, "" if ours else f"{name}, paper")
        if not ours:
            continue
        x = [100 * (1 - group.sparsity) for group, _ in ours]
        y = [estimate.mean for _, estimate in ours]
        colour, front = COLOURS[look], 5 if run[0].method == "auto" else 4
        axes.errorbar(
            x,
            y,
            bars([estimate for _, estimate in ours]),
            fmt="none",
            ecolor=colour,
            elinewidth=1.2,
            capsize=2.5,
            zorder=front,
        )
        axes.plot(x, y, color=colour, linewidth=1.8, zorder=front)
        axes.plot(
            [],
            [],
            color=colour,
            linewidth=1.8,
            marker=MARKERS[look],
            markeredgecolor=COLOURS["paper"],
            label=name,
        )
        points(axes, x, y, look, [f"#{group.anchor}" for group, _ in ours], zorder=front + 1)
    accuracies(axes, values, "y")
    axes.set_xscale("log")
    axes.set_xlim(max(left) * _ROOM, min(left) / 1.12)
    ticks = [x for x in _LEFT if min(left) * 0.999 <= x <= max(left) * 1.001] or left[:1]
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.minorticks_off()
    axes.tick_params(length=0)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("weights left, %")
    axes.set_ylabel("accuracy after removal, %")
    handles, labels = axes.get_legend_handles_labels()
    figure = axes.get_figure()
    if handles and figure is not None:
        columns = 3 if max(map(len, labels)) < 15 else 2 if max(map(len, labels)) < 26 else 1
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


_LEFT = (100, 50, 20, 10, 5, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)


def _levels(axes: Axes, dense: list[Group], x: float) -> None:
    """Networks of which nothing was removed: a line across, with a mark at its beginning."""
    colour = COLOURS["dense"]
    for name, same in lines(dense).items():
        for group in same:
            estimate, theirs, link = group.estimate("after"), group.published.get("after"), f"#{group.anchor}"
            if theirs is not None:
                label = "" if estimate else f"{name}, paper"
                axes.axhline(theirs, color=colour, linewidth=1.2, linestyle=_DASHES, label=label, zorder=2)
                points(axes, [x], [theirs], "dense", [link if estimate else None], hollow=True, zorder=3)
            if estimate:
                axes.axhline(estimate.mean, color=colour, linewidth=1.4, label=name, zorder=3)
                points(axes, [x], [estimate.mean], "dense", [link], zorder=4)


def _paper_line(axes: Axes, theirs: list[tuple[Group, float]], look: str, label: str) -> None:
    places = {group.sparsity: (group, value) for group, value in theirs}
    x, y = [100 * (1 - sparsity) for sparsity in places], [value for _, value in places.values()]
    axes.plot(x, y, color=COLOURS[look], linewidth=1.2, linestyle=_DASHES, zorder=2)
    if label:
        axes.plot(
            [],
            [],
            color=COLOURS[look],
            linestyle=_DASHES,
            marker=MARKERS[look],
            markerfacecolor="none",
            label=label,
        )
    links = [f"#{group.anchor}" if group.anchor else None for group, _ in places.values()]
    points(axes, x, y, look, links, hollow=True, zorder=3)
