"""The figure of the pages on speed: asked and got, and how much of the operations arrives.

    python benchmarks/speed_figure.py

Draws results/speed.svg from what ``speed.py`` wrote: speed-time-targets.json and speed-widths.json.
"""

import argparse
from pathlib import Path
from typing import Any

from figure import OURS, THEIRS
from harness import RESULTS

from fadeout._checks import extra
from fadeout._files import parse_json, write_atomically
from fadeout.experiments.report.styles import COLOURS, STYLE

ENGINES = {"onnxruntime": ("onnxruntime", OURS), "pytorch": ("PyTorch", "#d9730d")}
PAGES = {"speed-time-targets", "speed-widths"}
MARKS = ("o", "s", "^", "D")


def draw(folder: Path) -> None:
    """Write both as one SVG.

    Args:
        folder: where the results are, and where it goes.
    """
    with extra("experiments"):
        from matplotlib import style
        from matplotlib.figure import Figure

    targets, widths = (parse_json((folder / f"{page}.json").read_text())["rows"] for page in sorted(PAGES))
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(9.6, 3.9), layout="constrained")
        asked, *shares = figure.subplots(1, 3, width_ratios=(1.15, 1, 1))
        _asked(asked, [row for row in targets if row["got"] is not None])
        for axes, engine, name in zip(
            shares, ("onnxruntime", "channels_last"), ("onnxruntime", "PyTorch"), strict=True
        ):
            _shares(axes, widths, f"{engine}, 1 threads")
            axes.set_title(f"Real speed over operations\nin {name}")
        shares[1].tick_params(labelleft=False)
        limits = [axes.get_xlim() for axes in shares]
        for axes in shares:
            axes.set_xlim(min(low for low, _ in limits), max(high for _, high in limits))
        write_atomically(
            folder / "speed.svg",
            lambda file: figure.savefig(file, format="svg", metadata={"Date": None}, dpi=100),
        )


def _asked(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Each network in each engine: the speed of what came out, over that which was asked for."""
    speeds = sorted({row["asked"] for row in rows})
    networks = list(dict.fromkeys(row["network"] for row in rows))
    axes.axhspan(0.9, 1.1, color=COLOURS["rule"], linewidth=0)
    axes.axhline(1, color=COLOURS["soft"], linewidth=0.8)
    for row in rows:
        number, (_, colour) = networks.index(row["network"]), ENGINES[row["engine"]]
        side = number - (len(networks) - 1) / 2 + 0.15 * (1 if row["engine"] == "pytorch" else -1)
        place = speeds.index(row["asked"]) + 0.22 * side
        axes.plot(place, row["got"] / row["asked"], MARKS[number], color=colour, markersize=6)
    for number, network in enumerate(networks):
        axes.plot([], [], MARKS[number], color=COLOURS["soft"], label=network.partition(",")[0])
    for name, colour in ENGINES.values():
        axes.plot([], [], color=colour, linewidth=5, label=name)
    axes.set_xticks(range(len(speeds)), [f"{speed:g}x" for speed in speeds])
    axes.margins(y=0.1)
    low, high = axes.get_ylim()
    axes.set(ylim=(low, high + 0.5 * (high - low)), xlim=(-0.5, len(speeds) - 0.5), xlabel="asked")
    axes.set_yticks([tick for tick in axes.get_yticks() if low <= tick <= high])  # above is the legend
    axes.legend(loc="upper left", ncols=2, fontsize="small", frameon=False, columnspacing=1)
    axes.set_title("A target in time:\ngot over asked")


def _shares(axes: Any, rows: list[dict[str, Any]], column: str) -> None:
    """What part of what the operations say arrives: any width, and multiples."""
    labels: list[str] = []
    for row in rows:
        target, _, how = row["what"].partition(", ")
        if how.startswith("Torch-Pruning") or how.endswith("coupled"):
            continue
        label = f"{row['network'].partition(',')[0]}\n{target} gone".replace("%", " %")
        labels += [] if label in labels else [label]
        share, place = row[column] / row["operations"], -labels.index(label)
        rounded = how != "any width"
        axes.plot(share, place, "o", color=OURS if rounded else THEIRS, markersize=6, zorder=3)
        axes.annotate(
            f"{share:.2f}",
            (share, place),
            xytext=(6 if rounded else -6, 0),
            textcoords="offset points",
            ha="left" if rounded else "right",
            va="center",
            fontsize="small",
            color=OURS if rounded else COLOURS["soft"],
        )
    axes.set_yticks([-place for place in range(len(labels))], labels, fontsize="small")
    axes.margins(x=0.3)
    axes.set_ylim(0.7 - len(labels), 1.1)
    axes.plot([], [], "o", color=THEIRS, label="any width")
    axes.plot([], [], "o", color=OURS, label="multiples")
    axes.legend(loc="upper left", ncols=2, fontsize="small", frameon=False, columnspacing=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of the pages")
    draw(parser.parse_args().results)


if __name__ == "__main__":
    main()
