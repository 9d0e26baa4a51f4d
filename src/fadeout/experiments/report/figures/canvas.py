"""What the figures share: an SVG for a page, points that lead to configurations, an axis of accuracies."""

import io
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from typing import Any, Literal, NamedTuple

import numpy as np

from fadeout._checks import extra
from fadeout.experiments.report.formatting import count, joined
from fadeout.experiments.report.groups import Group, alike, marks
from fadeout.experiments.report.statistics import Estimate
from fadeout.experiments.report.styles import COLOURS, STYLE, Look

with extra("experiments"):  # for all figures: each of them imports this module first
    from markupsafe import Markup
    from matplotlib import style
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = Sequence[float]
Groups = Sequence[Group]
_HIGH = 95.0  # above, accuracies are stretched


class Plot(NamedTuple):
    """An SVG, and what stands above it."""

    title: str
    mark: str
    svg: Markup


def plot_setups(
    groups: Groups, draw: Callable[..., None], height: Callable, salt: str, what: Callable = lambda here: ""
) -> list[Plot]:
    """A figure for each setup of which a run is done; its height and what it shows follow from its groups."""
    plots = []
    for number, here in enumerate(alike(groups, lambda group: group.setup).values()):
        if any(group.done for group in here):
            title, size = joined(here[0].where, what(here)), (4.5, height(here))
            svg = draw_svg(size, partial(draw, groups=here), title, here, f"{salt}-{number}")
            plots.append(Plot(title, marks(here), svg))
    return plots


def draw_svg(
    size: tuple[float, float],
    draw: Callable[[Axes], None],
    label: str = "",
    groups: Groups = (),
    salt: str = "fadeout",
    colours: Mapping[str, str] = COLOURS,
) -> Markup:
    """Draw into an SVG to put into a page: without prolog, size and names of elements.

    Args:
        size: in inches.
        draw: draws in the colours of roles.
        label: what the figure shows, for those who cannot see it.
        groups: to whose configurations points lead.
        salt: makes the identifiers inside differ from those of the page's other figures.
        colours: of the roles; the page says what ``var(--role)`` is.
    """
    file = io.StringIO()
    with style.context(["default", STYLE, {"svg.fonttype": "none", "svg.hashsalt": salt}]):
        figure = Figure(figsize=size)
        draw(figure.subplots())
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    start, view, rest = re.split(r'(viewBox="[^"]*")[^>]*', file.getvalue(), maxsplit=1)
    start = f'<svg role="group" aria-label="{escape(label)}" ' if label else "<svg "
    svg = start + view + re.sub(r'<metadata>.*?</metadata>|(?<=<g) id="[^"]*"', "", rest, flags=re.DOTALL)
    for role, colour in colours.items():
        svg = svg.replace(colour, f"var(--{role})")
    for group in groups:
        link, said = escape(f"#{group.anchor}"), escape(_said(group))
        svg = svg.replace(
            f'<a xlink:href="{link}" target="_blank">',
            f'<a href="{link}" aria-label="{said}"><title>{said}</title>',
        )
    return Markup(svg)


def _said(group: Group) -> str:
    """What a point says of itself."""
    seeds = joined(count(len(group.done), "seed"), group.mark, by="; ")
    return f"{group.title}: {group.estimates.get('after', 'failed')} ({seeds})"


def draw_points(
    axes: Axes, x: Numbers, y: Numbers, look: Look, groups: Groups, *, hollow=False, zorder: float
):
    """Filled marks, ours, or hollow ones, the paper's, each with a link to its group."""
    fill, edge = (COLOURS["paper"], look.light) if hollow else (look.light, look.rim)
    links = [f"#{group.anchor}" if group.anchor else None for group in groups]
    marks: dict[str, Any] = {"marker": look.marker, "facecolors": fill, "edgecolors": edge, "urls": links}
    if links:
        axes.scatter(x, y, 38, linewidths=1.2 if hollow else 0.9, clip_on=False, zorder=zorder, **marks)


def spread(estimates: Sequence[Estimate], limit: float = 100.0) -> list[list[float]]:
    """The stds, for bars below and above, but not beyond the limit."""
    below = [e.std if e.std and math.isfinite(e.std) else 0.0 for e in estimates]
    return [below, [min(std, max(limit - e.mean, 0.0)) for std, e in zip(below, estimates, strict=True)]]


def draw_legend(axes: Axes) -> None:
    """What the lines are, below the figure, in as many columns as fit; beyond three rows the figure grows."""
    handles, labels = axes.get_legend_handles_labels()
    figure = axes.figure
    if handles and isinstance(figure, Figure):
        longest = max(map(len, labels))
        columns = 3 if longest < 15 else 2 if longest < 26 else 1
        labels = [textwrap.fill(label, 54) for label in labels]
        rows = sum(label.count("\n") + 1 for label in labels) / columns
        figure.set_figheight(figure.get_figheight() + 0.19 * max(0.0, rows - 3))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def set_accuracy_axis(axes: Axes, values: Sequence[float], axis: Literal["x", "y"]) -> None:
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
    axes.set_axisbelow(True)
    axes.grid(axis=axis)


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
