"""The figure of the benchmarks: how the time of a step grows, and what other tools add."""

from pathlib import Path
from typing import Any

from fadeout._checks import extra
from fadeout._files import write_atomically
from fadeout.experiments.report.styles import COLOURS, STYLE

OURS, THEIRS = "#2f6fde", "#98a2b3"


def draw(growth: dict[str, Any], rivals: dict[str, Any], path: Path) -> None:
    """Write both as one SVG.

    Args:
        growth, rivals: the parts of the results' file; an empty one is left out.
        path: of the SVG.
    """
    with extra("experiments"):
        from matplotlib import style
        from matplotlib.figure import Figure

    panels = [(draw, part) for draw, part in ((_growth, growth), (_rivals, rivals)) if part]
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(4.8 * max(len(panels), 1), 3.6))
        for number, (panel, part) in enumerate(panels):
            panel(figure.add_subplot(1, len(panels), number + 1), part)
        write_atomically(
            path, lambda file: figure.savefig(file, format="svg", metadata={"Date": None}, dpi=100)
        )


def _growth(axes: Any, part: dict[str, Any]) -> None:
    points = part["points"]
    sizes = [point["weights"] for point in points]
    for name, colour in (("step", OURS), ("multiplication", THEIRS)):
        low, middle, high = zip(*([1e3 * value for value in point[name]] for point in points), strict=True)
        axes.fill_between(sizes, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(sizes, middle, "o-", color=colour, markersize=3.5)
        axes.annotate(
            {"step": "the pruner's\nstep", "multiplication": "one multi-\nplication"}[name],
            (sizes[-1], middle[-1]),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=colour,
        )
    top = 1e3 * points[-1]["step"][1]
    line = [2.5 * top * size / sizes[-1] for size in sizes]
    axes.plot(sizes, line, "--", color=COLOURS["soft"], linewidth=0.8)
    axes.annotate(
        "proportional",
        (sizes[len(sizes) // 2], line[len(sizes) // 2]),
        xytext=(-6, 4),
        textcoords="offset points",
        color=COLOURS["soft"],
        ha="right",
    )
    axes.set(xscale="log", yscale="log", xlabel="weights", title="Milliseconds of a step")


def _rivals(axes: Any, part: dict[str, Any]) -> None:
    added = {n: v["milliseconds added"] for n, v in part["contestants"].items() if n != "plain"}
    names = sorted(added, key=lambda name: added[name][1], reverse=True)
    for place, name in enumerate(names):
        low, middle, high = added[name]
        colour = OURS if name.startswith("fadeout") else THEIRS
        axes.barh(place, middle, color=colour, height=0.6)
        axes.plot([low, high], [place, place], color=COLOURS["ink"], linewidth=0.8)
        axes.annotate(
            f"{middle:.3g}", (max(high, 0), place), xytext=(4, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(range(len(names)), names)
    axes.margins(x=0.15)
    axes.set_title(f"Milliseconds added to a step of ResNet-20 ({part['width']} maps)", x=-0.9)
