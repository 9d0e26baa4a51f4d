"""What the figures share: SVGs for a page, points that lead to configurations, axes that stretch accuracies."""

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, Literal, NamedTuple

import numpy as np

from fadeout._checks import extra
from fadeout.experiments.report.formatting import count, joined
from fadeout.experiments.report.groups import Estimate, Group
from fadeout.experiments.report.styles import COLOURS, STYLE, Look

with extra("experiments"):
    from markupsafe import Markup
    from matplotlib import style
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HIGH = 95.0  # above, accuracies are stretched


class Plot(NamedTuple):
    """An SVG, and what stands above it."""

    title: str
    mark: str
    svg: Markup


def plot(
    title: str,
    mark: str,
    size: tuple[float, float],
    salt: str,
    groups: Sequence[Group],
    draw: Callable[[Axes], None],
) -> Plot:
    """Draw a figure whose links lead to the configurations of the groups; ``salt`` is its own in the page."""
    svg = draw_svg(size, draw, links={f"#{g.anchor}": _said(g) for g in groups if g.anchor}, salt=salt)
    label = Markup('<svg role="group" aria-label="{}" ').format(title)
    return Plot(title, mark, svg.replace(Markup("<svg "), label, 1))


def _said(group: Group) -> str:
    """What a point says of itself."""
    seeds = joined(count(len(group.done), "seed"), group.mark, by="; ")
    return f"{group.title}: {group.estimates.get('after', 'failed')} ({seeds})"


def draw_svg(
    size: tuple[float, float],
    draw: Callable[[Axes], None],
    colours: Mapping[str, str] = COLOURS,
    links: Mapping[str, str] | None = None,
    salt: str = "fadeout",
) -> Markup:
    """Draw into an SVG to put into a page: without prolog, size and names of groups.

    Args:
        size: in inches.
        draw: draws in the colours of roles.
        colours: of the roles; the page says what ``var(--role)`` is.
        links: what to say of each link of the figure, which must be ``#anchor`` in the same page.
        salt: makes the identifiers inside differ from those of the page's other figures.
    """
    file = io.StringIO()
    with style.context(["default", {**STYLE, "svg.fonttype": "none", "svg.hashsalt": salt}]):
        figure = Figure(figsize=size)
        draw(figure.subplots())
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', r"<svg \1>", svg, count=1)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    for role, colour in colours.items():
        svg = svg.replace(colour, f"var(--{role})")
    for link, text in (links or {}).items():
        said = escape(text)
        svg = svg.replace(
            f'<a xlink:href="{escape(link)}" target="_blank">',
            f'<a href="{escape(link)}" aria-label="{said}"><title>{said}</title>',
        )
    return Markup(svg)


def points(
    axes: Axes,
    x: Sequence[float],
    y: Sequence[float],
    look: Look,
    groups: Sequence[Group],
    *,
    hollow: bool = False,
    zorder: float,
) -> None:
    """Filled marks, ours, or hollow ones, the paper's, each with a link to its group."""
    if not x:
        return
    colour, paper = look.light, COLOURS["paper"]
    axes.scatter(
        x,
        y,
        38,
        marker=look.marker,
        facecolors=paper if hollow else colour,
        edgecolors=colour if hollow else paper,
        linewidths=1.2 if hollow else 0.9,
        urls=[f"#{group.anchor}" if group.anchor else None for group in groups],
        clip_on=False,
        zorder=zorder,
    )


def error_bars(
    axes: Axes, x: Sequence[float], y: Sequence[float], look: Look, *, zorder: float = 2, **spread: Any
) -> None:
    """Bars of ``xerr`` or ``yerr``."""
    axes.errorbar(x, y, fmt="none", ecolor=look.light, elinewidth=1.2, capsize=2.5, zorder=zorder, **spread)


def spread(estimates: Sequence[Estimate], *, limited: bool = True) -> list[list[float]]:
    """The stds, below and above, but not beyond 100 % if that is the limit."""
    below = [e.std if e.std and math.isfinite(e.std) else 0.0 for e in estimates]
    above = [min(std, max(100 - e.mean, 0.0)) for std, e in zip(below, estimates, strict=True)]
    return [below, above if limited else below]


def plain_axes(axes: Axes) -> None:
    """Without ticks and the line at the left; the grid is behind the points."""
    axes.tick_params(length=0)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)


def accuracy_axis(axes: Axes, values: Sequence[float], axis: Literal["x", "y"]) -> None:
    """An axis of accuracies: stretched near the top if they come there."""
    known = [value for value in values if math.isfinite(value)] or [100.0]
    low, high = min(known), max(known)
    if high > _HIGH:
        (axes.set_yscale if axis == "y" else axes.set_xscale)("function", functions=(stretched, compressed))
        low = max(0.0, min(low - 0.1 * (101 - low), 90.0))
        high = min(100.0, high + 0.3 * (101 - high))
        ticks = [t for t in (0, 20, 50, 80, 90, 95, 97, 98, 99, 99.5) if low <= t <= high]
        axes.set(**{f"{axis}ticks": ticks, f"{axis}ticklabels": [f"{tick:g}" for tick in ticks]})
    else:
        margin = max(1.0, 0.06 * (high - low))
        low, high = max(0.0, low - margin), high + margin
    axes.set(**{f"{axis}lim": (low, high)})
    axes.grid(axis=axis, color=COLOURS["rule"], linewidth=0.8)


def stretched(accuracy):
    """A logarithm of the errors: from 98 to 99 % is as far as from 50 to 75 %.

    >>> [round(float(x), 3) for x in stretched([0, 91, 99])]
    [-2.004, -1.0, -0.301]
    """
    return -np.log10(np.maximum(101 - np.asarray(accuracy, float), 1e-3))  # margins may go beyond


def compressed(value):
    """The accuracy that :func:`stretched` puts there.

    >>> float(compressed(stretched(91)))
    91.0
    """
    return 101 - 10 ** -np.asarray(value, float)
