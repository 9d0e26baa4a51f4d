"""The demo's figure: what every method reaches, and how the weights fade."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fadeout._files import write_atomically
from fadeout.experiments.demo.fading import LOWEST, Fading
from fadeout.experiments.report import styles
from fadeout.experiments.report.figures.canvas import compressed, draw_svg, stretched
from fadeout.experiments.report.formatting import percent, strength

COLOURS = {
    **{role: styles.COLOURS[role] for role in ("ink", "soft", "rule", "paper")},
    "fadeout": "#0b6bcb",
    "iterative": "#d9730d",
    "one-shot": "#9353b4",
    "goes": "#b8c0cc",
}

_MARKERS = {"fadeout": "o", "iterative": "s", "one-shot": "^"}
_TOP = 99.4  # of the axis of accuracies
_PILE = 1.5  # the width of all weights, in the bars of those that are below the range


def write_figure(folder: Path, outcomes: Sequence[Any], fading: Fading) -> None:
    """Both panels side by side, as ``figure.png`` and ``figure.svg``."""
    with style.context(["default", styles.STYLE]):  # whatever the user's own style is
        figure = Figure(figsize=(10.5, 4.8))
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.1), gridspec_kw={"wspace": 0.06})
        draw_accuracies(left, outcomes)
        draw_fading(right, fading)
        for format, options in (("png", {"dpi": 160}), ("svg", {"metadata": {"Date": None}})):
            save = partial(figure.savefig, format=format, **options)
            write_atomically(folder / f"figure.{format}", save)


def panels(outcomes: Sequence[Any], fading: Fading) -> tuple[Markup, Markup]:
    """Each panel as an SVG to put into a page, which says what the colours of the roles are."""
    draw = partial(draw_svg, (4.5, 4.3), colours=COLOURS)
    return draw(partial(draw_accuracies, outcomes=outcomes)), draw(partial(draw_fading, fading=fading))


def draw_accuracies(axes: Axes, outcomes: Sequence[Any]) -> None:
    """Test accuracy against weights left, a line for each method, the dense network as a level.

    Args:
        axes: to draw into.
        outcomes: with their ``method``, ``sparsity`` and ``final`` accuracy; dense is what has no sparsity.
    """
    dense = next(o for o in outcomes if not o.sparsity)
    axes.set_yscale("function", functions=(stretched, compressed))
    axes.axhline(dense.final, color=COLOURS["soft"], linewidth=1.2, linestyle=(0, (4, 3)))
    ends = {"dense": dense.final}
    for method, marker in _MARKERS.items():
        points = sorted((o for o in outcomes if o.method == method), key=lambda o: o.sparsity)
        x, y = [1 - o.sparsity for o in points], [o.final for o in points]
        (line,) = axes.plot(x, y, color=COLOURS[method], marker=marker, linewidth=2, clip_on=False)
        line.set(markersize=6.5, markeredgecolor=COLOURS["paper"], zorder=3 if method == "fadeout" else 2)
        ends[method] = y[-1]
    axes.set_xscale("log")
    left = sorted({1 - o.sparsity for o in outcomes if o.sparsity})
    lowest = min(80.0, min(o.final for o in outcomes) - 3)
    axes.set(xlim=(left[-1] * 1.08, left[0] / 1.08), ylim=(lowest, _TOP))
    axes.set_xticks(left, [f"{100 * x:.3g} %" for x in left])
    axes.set_yticks([y for y in (20, 50, 80, 90, 95, 97, 98, 99) if y > lowest])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:.0f} %")
    axes.set_axisbelow(True)
    axes.grid(axis="y")
    axes.set(xlabel="weights left", title="Test accuracy of the finished network")
    gap, y = 0.055 * float(stretched(_TOP) - stretched(lowest)), -np.inf
    for name, final in sorted(ends.items(), key=lambda item: item[1]):
        y = max(stretched(final), y + gap)  # up until no label covers another
        weight = "bold" if name == "fadeout" else "normal"
        end = (left[0], compressed(y))
        label = axes.annotate(name, end, (12, 0), textcoords="offset points", weight=weight)
        label.set(va="center", color=COLOURS.get(name, COLOURS["soft"]), annotation_clip=False)


def draw_fading(axes: Axes, fading: Fading) -> None:
    """Ridge lines, one below the other through the training: how large the weights are."""
    rows = sorted({round(x) for x in np.linspace(0, len(fading.stays) - 1, 16)})
    stays, goes = (np.asarray(part, float)[rows] for part in (fading.stays, fading.goes))
    gone = (goes[:, 0] + stays[:, 0]) / (goes + stays).sum(1)
    stays, goes, x = stays[:, 1:], goes[:, 1:], np.asarray(fading.centres[1:])
    scale = 2.1 / np.sqrt(max(stays.max(), goes.max()))  # roots, or the few that stay would not be seen
    for number in range(len(rows)):
        base, order = -number, 2 + number
        axes.axhline(base, color=COLOURS["rule"], linewidth=0.6, zorder=1)
        for values, colour in ((goes[number], COLOURS["goes"]), (stays[number], COLOURS["fadeout"])):
            height = scale * np.sqrt(np.convolve(values, (0.25, 0.5, 0.25), mode="same"))
            height[height < 0.02] = np.nan
            axes.fill_between(x, base, base + height, color=colour, alpha=0.8, linewidth=0, zorder=order)
            axes.plot(x, base + height, color=COLOURS["paper"], linewidth=0.9, zorder=order)
        axes.barh(base + 0.29, -_PILE * gone[number], 0.58, LOWEST - 0.4, color=COLOURS["goes"], zorder=2)
    last, removed, stay = 1 - len(rows), percent(fading.sparsity), percent(1 - fading.sparsity)
    label = partial(axes.text, y=last + 0.27, va="center", fontsize=9)
    label(LOWEST - 0.2, s=f"{removed} have faded away", ha="left", color=COLOURS["soft"])
    label(x[np.argmax(stays[-1] > 0)] - 0.3, s=f"{stay} stay", ha="right", color=COLOURS["fadeout"])
    axes.set(xlim=(LOWEST - 0.4 - 1.05 * _PILE, 0.4), ylim=(last - 0.2, 2.2))
    axes.set_yticks([-number for number in range(len(rows))], [str(epoch) for epoch in rows])
    powers = (-9, -6, -3, 0)
    axes.set_xticks([LOWEST - 0.4 - _PILE / 2, *powers], ["less", *(strength(10.0**p) for p in powers)])
    axes.spines["bottom"].set_visible(False)
    axes.set(xlabel="size of a weight", ylabel="epoch", title=f"How {removed} of the weights fade")
