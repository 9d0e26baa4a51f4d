"""What the plots share: SVGs, in which each point leads to the configuration of its runs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fadeout._checks import extra
from fadeout.experiments.drawing import STYLE, compressed, inline, stretched
from fadeout.experiments.report import words
from fadeout.experiments.report.groups import Estimate, Group
from fadeout.experiments.report.styles import COLOURS, MARKERS

with extra("experiments"):
    from matplotlib import style
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HIGH = 95.0  # above, accuracies are stretched


@dataclass(frozen=True)
class Plot:
    """An SVG, and what stands above it."""

    title: str
    badge: str
    svg: str


def drawn(size: tuple[float, float], salt: str, groups: Sequence[Group], draw: Callable[[Axes], None]) -> str:
    """Draw into an SVG whose links lead to the configurations of the groups."""
    links = {f"#{group.anchor}": link_text(group) for group in groups if group.anchor}
    with style.context(["default", {**STYLE, "svg.fonttype": "none", "svg.hashsalt": salt}]):
        figure = Figure(figsize=size)
        draw(figure.subplots())
        return inline(figure, COLOURS, links)


def link_text(group: Group) -> str:
    """What a point says of itself."""
    ours = words.spread(group.estimate("after")) or "failed"
    seeds = "1 seed" if len(group.done) == 1 else f"{len(group.done)} seeds"
    mark = words.mark(group)
    return f"{words.what(group)}: {ours} ({seeds}{f'; {mark}' if mark else ''})"


def points(
    axes: Axes,
    x: Sequence[float],
    y: Sequence[float],
    look: str,
    links: Sequence[str | None],
    *,
    hollow: bool = False,
    zorder: float,
) -> None:
    """Filled marks, ours, or hollow ones, the paper's, each with its link."""
    if not x:
        return
    colour, paper = COLOURS[look], COLOURS["paper"]
    axes.scatter(
        x,
        y,
        38,
        marker=MARKERS[look],
        facecolors=paper if hollow else colour,
        edgecolors=colour if hollow else paper,
        linewidths=1.2 if hollow else 0.9,
        urls=links,
        clip_on=False,
        zorder=zorder,
    )


def bars(estimates: Sequence[Estimate], *, limited: bool = True) -> list[list[float]]:
    """The standard deviations, below and above, but not beyond 100 % if that is the limit."""
    spreads = [e.deviation if e.deviation and math.isfinite(e.deviation) else 0.0 for e in estimates]
    above = [min(d, max(100 - e.mean, 0.0)) for d, e in zip(spreads, estimates, strict=True)]
    return [spreads, above if limited else spreads]


def accuracies(axes: Axes, values: Sequence[float], axis: str) -> None:
    """An axis of accuracies: stretched near the top if they come there."""
    known = [value for value in values if math.isfinite(value)] or [100.0]
    low, high = min(known), max(known)
    which = axes.yaxis if axis == "y" else axes.xaxis
    limits = axes.set_ylim if axis == "y" else axes.set_xlim
    if high > _HIGH:
        (axes.set_yscale if axis == "y" else axes.set_xscale)("function", functions=(stretched, compressed))
        low = max(0.0, min(low - 0.1 * (101 - low), 90.0))
        high = min(100.0, high + 0.3 * (101 - high))
        ticks = [t for t in (0, 20, 50, 80, 90, 95, 97, 98, 99, 99.5) if low <= t <= high]
        which.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    else:
        margin = max(1.0, 0.06 * (high - low))
        low, high = max(0.0, low - margin), high + margin
    limits(low, high)
    axes.grid(axis="y" if axis == "y" else "x", color=COLOURS["rule"], linewidth=0.8)
