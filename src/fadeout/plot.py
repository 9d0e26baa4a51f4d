"""Figures of a pruning, one call each: of a live pruner's history, of masks, or of what runs left behind.

They need matplotlib, ``pip install "fadeout[plot]"``. Each draws into ``axes``, by default those of a new
figure, and returns them: ``plot.layers(masks).figure.savefig("layers.png")``.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fadeout._arguments import shown
from fadeout._checks import extra
from fadeout.masks import Masks
from fadeout.pruners.pruner import Pruner
from fadeout.torch_bridge.parameters import has_two_dimensions, named
from fadeout.torch_bridge.sharding import whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PathLike = str | os.PathLike[str]
_SAMPLE = 65_536  # weights, at a fixed stride, stand for all of a larger network


class History:
    """What :func:`fading` and :func:`decided` draw: some weights of a pruner's network, noted now and then.

    Of a large network every n-th weight is kept, 65,536 at most: a note takes a quarter of a megabyte.

    Args:
        pruner: before its first step.

    >>> model = nn.Linear(10, 10)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> from fadeout import SelectiveWeightDecay
    >>> pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.9, steps=20)
    >>> history = History(pruner)
    >>> for _ in range(20):
    ...     optimizer.zero_grad()
    ...     model(torch.randn(8, 10)).square().mean().backward()
    ...     optimizer.step()
    ...     history.note()
    >>> history
    History(21 notes, progress 0 to 1)
    """

    def __init__(self, pruner: Pruner):
        self.pruner = pruner
        self.progress: list[float] = []
        self.weights: list[Tensor] = []
        self.kept: list[Tensor] = []
        self.note()

    def note(self) -> None:
        """Note how large the weights are now, and which of them a removal would keep.

        It takes the time of a removal: once in an epoch is enough. Where the network is sharded, every
        process must call it.
        """
        masks = self.pruner.masks()
        if not masks:
            raise ValueError(f"nothing to note: {type(self.pruner).__name__} has no masks")
        self.progress.append(self.pruner.progress)
        self.weights.append(_sample([self.pruner.parameters[name].detach() for name in masks]).float())
        self.kept.append(_sample(list(masks.values())))

    def __repr__(self) -> str:
        return f"History({len(self.progress)} notes, progress {self.progress[0]:g} to {self.progress[-1]:g})"


def _sample(tensors: Sequence[Tensor]) -> Tensor:
    every = -(-sum(tensor.numel() for tensor in tensors) // _SAMPLE)
    return torch.cat([whole(tensor).cpu().flatten() for tensor in tensors])[::every].clone()


def accuracy(
    source: PathLike | Mapping[str, Mapping[float, float]],
    *,
    dense: float | None = None,
    axes: "Axes | None" = None,
) -> "Axes":
    """Accuracy against what is left, a line for each method.

    Args:
        source: the folder of results of ``fadeout reproduce``, or one file of it (``cora.jsonl``), with the
            runs of one network on one data set; or, by method, accuracies in percent by the fraction that is
            left.
        dense: the accuracy of the network as it was, for a level; from files it is known.
        axes: to draw into.

    >>> accuracy({"fadeout": {0.1: 98.7, 0.02: 97.9}}, dense=98.9).get_xlabel()
    'weights left'
    """
    if isinstance(source, Mapping):
        lines = {name: dict(points) for name, points in source.items()}
    else:
        lines, found = _lines(Path(source))
        dense = found if dense is None else dense
    if not any(lines.values()):
        raise ValueError(f"nothing to draw: there is no accuracy of any method in {source}")
    with _drawing(axes) as here:
        from fadeout.experiments.report.figures.canvas import set_accuracy_axis
        from fadeout.experiments.report.styles import COLOURS, METHODS

        looks = {look.label: look for look in METHODS.values()} | METHODS
        if dense is not None:
            here.axhline(dense, color=COLOURS["soft"], linewidth=1.2, linestyle=(0, (4, 3)), label="dense")
        for name, points in lines.items():
            x = sorted(points, reverse=True)
            look = looks.get(name)
            (line,) = here.plot(
                x, [points[left] for left in x], "o-", label=name, linewidth=1.8, markersize=6
            )
            if look is not None:
                line.set(color=look.light, marker=look.marker, label=look.label)
        values = [value for points in lines.values() for value in points.values()]
        set_accuracy_axis(here, [*values, *([] if dense is None else [dense])], "y")
        lefts = sorted({left for points in lines.values() for left in points})
        here.set_xscale("log")
        here.set_xlim(lefts[-1] * 1.1, lefts[0] / 1.1)
        shown = lefts if len(lefts) <= 8 else [left for left in lefts if left in (0.001, 0.01, 0.1, 0.5, 0.9)]
        here.set_xticks(shown, [f"{100 * left:.3g} %" for left in shown])
        here.minorticks_off()
        here.set(xlabel="weights left", ylabel="accuracy, %", title="Accuracy against what is left")
        here.legend()
    return here


def fading(source: History | PathLike, *, axes: "Axes | None" = None) -> "Axes":
    """How the weights fade: their sizes, one row below the other through the training.

    Args:
        source: a history of a live pruner, or the ``results.json`` of ``fadeout demo``.
        axes: to draw into.
    """
    with _drawing(axes, height=4.8) as here:
        from fadeout.experiments.demo.fading import Fading
        from fadeout.experiments.report.figures.demo import draw_fading

        if isinstance(source, History):
            _check_notes(source)
            stays = source.kept[-1]
            shown = Fading.of(round(1 - float(stays.float().mean()), 6), source.weights, stays)
        else:
            found = _read_json(Path(source)).get("fading")
            if found is None:
                raise ValueError(
                    f"{source} has no 'fading' in it: pass the results.json of fadeout demo, or a History"
                )
            shown = Fading(**found)
        draw_fading(here, shown)
        if isinstance(source, History):
            rows = [-round(tick) for tick in here.get_yticks()]  # those that are drawn, of those noted
            notes = [round(row * (len(source.progress) - 1) / max(rows[-1], 1)) for row in rows]
            here.set_yticks([-row for row in rows], [f"{source.progress[note]:.0%}" for note in notes])
            here.set_ylabel("progress")
    return here


def layers(
    source: Pruner | Mapping[str, Tensor] | nn.Module | PathLike, *, axes: "Axes | None" = None
) -> "Axes":
    """What stays, layer by layer: a bar for the fraction, and how many weights that is.

    Args:
        source: a pruner (what would stay now), masks, a network with zeros in it, or the folder of a run.
        axes: to draw into.
    """
    rows = [(name, int(whole(mask.sum())), mask.numel()) for name, mask in _masks(source).items()]
    if not rows:
        raise ValueError(f"nothing to draw: no parameter of {shown(source)} has a mask")
    with _drawing(axes, height=max(2.0, 0.9 + 0.24 * len(rows))) as here:
        from fadeout.experiments.report.styles import COLOURS, METHODS

        shares = [100 * left / total for _, left, total in rows]
        bars = here.barh(range(len(rows)), shares, color=METHODS["auto"].light, height=0.7)
        here.set_yticks(range(len(rows)), [name for name, _, _ in rows])
        here.invert_yaxis()
        here.set_xlim(0, 1.3 * max(shares) or 1)
        labels = [f"{share:.3g} %, {left:,}" for share, (_, left, _) in zip(shares, rows, strict=True)]
        here.bar_label(bars, labels, padding=4, fontsize=8, color=COLOURS["soft"])
        left, total = sum(left for _, left, _ in rows), sum(total for *_, total in rows)
        here.set_xlabel(f"weights left, %; in all {100 * left / total:.3g} %, {left:,} of {total:,}")
        here.set_title("What stays by layer")
    return here


def decided(source: History | PathLike, *, axes: "Axes | None" = None) -> "Axes":
    """When the kept set was decided: how much of the final one was kept at each moment.

    Args:
        source: a history of a live pruner, the folder of a run, or of several runs: a line for each.
        axes: to draw into.
    """
    if isinstance(source, History):
        _check_notes(source)
        final = source.kept[-1]
        shares = [float((kept & final).sum()) / max(int(final.sum()), 1) for kept in source.kept]
        lines = {type(source.pruner).__name__: list(zip(source.progress, shares, strict=True))}
    else:
        records = [record for record in _records(Path(source)) if "overlap" in record]
        if not records:
            raise ValueError(
                f"no run in {source} has noted its kept sets: those of fadeout 0.2 and newer do, once done"
            )
        lines = {_label(record, len(records)): record["overlap"] for record in records}
    with _drawing(axes) as here:
        for name, points in lines.items():
            here.plot(*zip(*((100 * x, 100 * y) for x, y in points), strict=True), linewidth=1.8, label=name)
        here.set(xlim=(0, 100), ylim=(0, 103), xlabel="progress, %", ylabel="of the final set, %")
        here.set_title("When the kept set was decided")
        here.grid(axis="y")
        if len(lines) > 1:
            here.legend()
    return here


def _check_notes(history: History) -> None:
    if len(history.progress) < 2:
        raise ValueError("the history has one note, of the start: call history.note() during the training")


def _masks(source: Any) -> Mapping[str, Tensor]:
    if isinstance(source, nn.Module):
        return {n: p.detach() != 0 for n, p in named(source).items() if has_two_dimensions(n, p)}
    if isinstance(source, Mapping):
        return source
    if hasattr(source, "masks"):  # whatever prunes, or does not: NoPruning has none
        return source.masks()
    path = Path(source) / "checkpoint"
    if not path.exists():
        raise ValueError(
            f"{source} is no folder of a run: it has no checkpoint. Pass a pruner, masks or a model instead"
        )
    kept = torch.load(path, map_location="cpu", weights_only=True).get("masks")
    if not kept:
        raise ValueError(f"the run in {source} has removed nothing yet")
    return Masks(kept)


def _records(path: Path) -> list[dict[str, Any]]:
    """Those of finished runs, below a folder, in a file, or in the folder of one run."""
    from fadeout.experiments.report.records import read

    if (path / "result.json").exists():
        return [_read_json(path / "result.json")]
    if not path.exists():
        raise ValueError(f"there is no {path}")
    return [r for records in read(path).values() for r in records if r["status"] == "done"]


def _lines(path: Path) -> tuple[dict[str, dict[float, float]], float | None]:
    """The mean accuracy over seeds, by method and by what is left; and that of the dense network."""
    found = _records(path)
    setups = {tuple(r["run"][field] for field in ("model", "width", "data", "structure")) for r in found}
    if len(setups) != 1:
        raise ValueError(
            f"{path} has runs of {len(setups)} setups, and a figure shows one network on one data set: pass "
            "the file of one experiment, or the numbers by method and by what is left"
        )
    runs: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in found:
        method, sparsity = record["run"]["method"], record["run"]["sparsity"]
        left = 1.0 if method == "dense" else round(1 - (sparsity or 0.0), 9)
        runs[method][left].append(record["after"])
    means = {name: {left: mean(values) for left, values in points.items()} for name, points in runs.items()}
    return means, means.pop("dense", {}).get(1.0)


def _label(record: dict[str, Any], several: int) -> str:
    run = record["run"]
    return f"{run['method']}, {run['sparsity']:g}, seed {run['seed']}" if several > 1 else run["method"]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


@contextmanager
def _drawing(axes: "Axes | None", height: float = 3.6) -> "Iterator[Axes]":
    """The axes to draw into, in the project's style, whatever the user's own is."""
    with extra("plot"):
        import markupsafe  # noqa: F401 - the report's figures need it
        import matplotlib.pyplot as plt
        from matplotlib import style

    from fadeout.experiments.report.styles import STYLE

    with style.context(["default", STYLE]):
        yield plt.subplots(figsize=(6.4, height))[1] if axes is None else axes
