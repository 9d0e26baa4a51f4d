"""Heat maps of a grid over the two ends of the paper's a: ours, and the paper's beside it."""

import math
from collections.abc import Sequence

from fadeout._checks import extra
from fadeout.experiments.report import words
from fadeout.experiments.report.grids import Cells, axes_of, grids
from fadeout.experiments.report.groups import Group
from fadeout.experiments.report.plots import Plot, drawn
from fadeout.experiments.report.styles import COLOURS

with extra("experiments"):
    from matplotlib import colormaps
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize, to_hex
    from matplotlib.patches import Rectangle

# Both maps keep their order for colour-blind eyes; the second has its middle, no change, in white.
_TITLES = {"after": "accuracy after removal, %", "change": "change through removal, points"}
_MAPS = {"after": "cividis", "change": "RdBu"}
_ON_DARK, _ON_LIGHT = "#fefefe", "#101418"  # no role's colours: a cell looks the same on a dark page


def heat_maps(groups: Sequence[Group], salt: str) -> list[Plot]:
    """For each place, target and setting: accuracy after removal and its change, ours and the paper's."""
    plots = []
    for cells in grids(groups):
        if not any(group.records for group in cells.values()):
            continue
        first = next(group for group in cells.values() if group.records)
        notes = (words.where(first.place), f"{words.percent(first.sparsity)} removed", first.note)
        title = ", ".join(note for note in notes if note)
        for metric in _TITLES:
            ours = {key: e.mean for key, group in cells.items() if (e := group.estimate(metric))}
            theirs = {
                key: group.published[metric] for key, group in cells.items() if metric in group.published
            }
            scale = _scale(
                metric, [*ours.values(), *(value for value in theirs.values() if value is not None)]
            )
            for who, values in (("ours", ours), ("the paper", theirs)):
                if not values:
                    continue
                svg = _map(cells, values, metric, scale, f"{salt}-{len(plots)}", failures=who == "ours")
                mark = words.mark(first) if who == "ours" else ""
                plots.append(Plot(f"{title}: {_TITLES[metric]}, {who}", mark, svg))
    return plots


def _scale(metric: str, values: Sequence[float]) -> Normalize:
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    if metric == "change":
        reach = max(1.0, *(abs(value) for value in finite))
        return Normalize(-reach, reach)
    return Normalize(min(finite), max(max(finite), min(finite) + 1))


def _map(cells: Cells, values: dict, metric: str, scale: Normalize, salt: str, *, failures: bool) -> str:
    lows, highs = axes_of(cells)
    size = (max(4.2, 1.1 + 0.62 * len(highs)), 0.9 + 0.4 * len(lows))

    def draw(axes: Axes) -> None:
        colours: Colormap = colormaps[_MAPS[metric]]
        for key, group in cells.items():
            x, y = highs.index(key[1]), lows.index(key[0])
            value = values.get(key)
            known = value is not None and math.isfinite(value)
            fill = to_hex(colours(scale(value))) if known else COLOURS["paper"]
            cell = Rectangle((x, y), 1, 1, facecolor=fill, edgecolor=COLOURS["paper"], linewidth=1.5)
            if group.anchor:
                cell.set_url(f"#{group.anchor}")
            axes.add_patch(cell)
            text = words.number(value) if known else "failed" if failures and group.failed else ""
            if not known and key in values:
                text = "none"
            ink = (_ON_LIGHT if _luminance(fill) > 0.3 else _ON_DARK) if known else COLOURS["soft"]
            axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", color=ink, fontsize=8.5)
        axes.set_xlim(0, len(highs))
        axes.set_ylim(len(lows), 0)
        axes.set_xticks([x + 0.5 for x in range(len(highs))], [words.strength(a) for a in highs])
        axes.set_yticks([y + 0.5 for y in range(len(lows))], [words.strength(a) for a in lows])
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.set_xlabel("a_max")
        axes.set_ylabel("a_min")

    return drawn(size, salt, list(cells.values()), draw)


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return sum(weight * part**2.2 for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))
