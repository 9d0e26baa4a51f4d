"""The demo's figure: what every method reaches, and how the weights fade."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fadeout._checks import extra
from fadeout._files import write_atomically
from fadeout.experiments import drawing
from fadeout.experiments.demo import Outcome
from fadeout.experiments.demo.fading import LOWEST, Fading
from fadeout.experiments.drawing import STYLE, compressed, inline, power, stretched

with extra("experiments"):
    from matplotlib import style
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    **drawing.COLOURS,
    "fadeout": "#0b6bcb",
    "iterative": "#d9730d",
    "one-shot": "#9353b4",
    "goes": "#b8c0cc",
}

_TOP = 99.4  # of the axis of accuracies
_MARKERS = {"fadeout": "o", "iterative": "s", "one-shot": "^"}


def accuracy_panel(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    """Test accuracy against weights left, a line for each method, the dense network as a level."""
    dense = next(o for o in outcomes if not o.sparsity)
    axes.set_yscale("function", functions=(stretched, compressed))
    axes.axhline(dense.final, color=COLOURS["soft"], linewidth=1.2, linestyle=(0, (4, 3)))
    ends = {"dense": dense.final}
    for method, marker in _MARKERS.items():
        points = sorted((o for o in outcomes if o.method == method), key=lambda o: o.sparsity)
        axes.plot(
            [1 - o.sparsity for o in points],
            [o.final for o in points],
            color=COLOURS[method],
            marker=marker,
            markersize=6.5,
            markeredgecolor=COLOURS["paper"],
            linewidth=2,
            clip_on=False,
            zorder=3 if method == "fadeout" else 2,
        )
        ends[method] = points[-1].final
    axes.set_xscale("log")
    left = sorted({1 - o.sparsity for o in outcomes if o.sparsity})
    axes.set_xlim(left[-1] * 1.08, left[0] / 1.08)
    axes.set_xticks(left, [f"{100 * x:.3g} %" for x in left])
    lowest = min(80.0, min(o.final for o in outcomes) - 3)
    axes.set_ylim(lowest, _TOP)
    axes.set_yticks([y for y in (20, 50, 80, 90, 95, 97, 98, 99) if y > lowest])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:.0f} %")
    axes.grid(axis="y", color=COLOURS["rule"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xlabel("weights left")
    axes.set_title("Test accuracy of the finished network")
    for name, y in _apart(ends, 0.055 * float(stretched(_TOP) - stretched(lowest))).items():
        axes.annotate(
            name,
            (left[0], y),
            (12, 0),
            textcoords="offset points",
            va="center",
            color=COLOURS.get(name, COLOURS["soft"]),
            weight="bold" if name == "fadeout" else "normal",
            annotation_clip=False,
        )


def fading_panel(axes: Axes, fading: Fading) -> None:
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
            height = scale * np.sqrt(_smooth(values))
            height[height < 0.02] = np.nan
            axes.fill_between(x, base, base + height, color=colour, alpha=0.8, linewidth=0, zorder=order)
            axes.plot(x, base + height, color=COLOURS["paper"], linewidth=0.9, zorder=order)
        axes.barh(base + 0.29, -_PILE * gone[number], 0.58, LOWEST - 0.4, color=COLOURS["goes"], zorder=2)
    last, sparsity = 1 - len(rows), f"{100 * fading.sparsity:.4g} %"
    for place, text, side in (
        (LOWEST - 0.2, f"{sparsity} have faded away", "left"),
        (float(x[np.argmax(stays[-1] > 0)]) - 0.3, f"{100 - 100 * fading.sparsity:.4g} % stay", "right"),
    ):
        colour = COLOURS["soft" if side == "left" else "fadeout"]
        axes.text(place, last + 0.27, text, ha=side, va="center", color=colour, fontsize=9)
    axes.set_xlim(LOWEST - 0.4 - 1.05 * _PILE, 0.4)
    axes.set_ylim(last - 0.2, 2.2)
    axes.set_yticks([-number for number in range(len(rows))], [str(epoch) for epoch in rows])
    powers = (-9, -6, -3, 0)
    axes.set_xticks([LOWEST - 0.4 - _PILE / 2, *powers], ["less", *(power(p) for p in powers)])
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_xlabel("size of a weight")
    axes.set_ylabel("epoch")
    axes.set_title(f"How {sparsity} of the weights fade")


_PILE = 1.5  # the width of all weights, in the bars of those that are below the range


def write_figure(folder: Path, outcomes: Sequence[Outcome], fading: Fading) -> None:
    """Both panels side by side, as ``figure.png`` and ``figure.svg``."""
    with style.context(["default", STYLE]):  # whatever the user's own style is
        figure = Figure(figsize=(10.5, 4.8))
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.1), gridspec_kw={"wspace": 0.06})
        accuracy_panel(left, outcomes)
        fading_panel(right, fading)
        write_atomically(folder / "figure.png", lambda path: figure.savefig(path, format="png", dpi=160))
        write_atomically(
            folder / "figure.svg", lambda path: figure.savefig(path, format="svg", metadata={"Date": None})
        )


def panels(outcomes: Sequence[Outcome], fading: Fading) -> tuple[str, str]:
    """Each panel as an SVG to put into a page, which says what the colours of the roles are."""
    with style.context(["default", {**STYLE, "svg.fonttype": "none"}]):
        figures = [Figure(figsize=(4.5, 4.3)) for _ in range(2)]
        accuracy_panel(figures[0].subplots(), outcomes)
        fading_panel(figures[1].subplots(), fading)
        return inline(figures[0], COLOURS), inline(figures[1], COLOURS)


def _apart(values: dict[str, float], gap: float) -> dict[str, float]:
    """Move labels up or down until none covers another."""
    places, previous = {}, -np.inf
    for name, value in sorted(values.items(), key=lambda item: item[1]):
        previous = max(stretched(value), previous + gap)
        places[name] = float(compressed(previous))
    return places


def _smooth(values: np.ndarray) -> np.ndarray:
    return np.convolve(values, (0.25, 0.5, 0.25), mode="same")
