"""What the demo leaves behind: the numbers as JSON, and a report in one file."""

import json
import platform
import re
from dataclasses import asdict
from html import escape
from importlib.metadata import version
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Any

import torch

from fadeout import __version__
from fadeout._files import write_atomically
from fadeout.experiments.data import Dataset
from fadeout.experiments.demo import (
    SHRUNK_HEADINGS,
    Outcome,
    Settings,
    Shrunk,
    label,
    percent,
    shrunk_cells,
)
from fadeout.experiments.demo.fading import Fading
from fadeout.experiments.demo.figure import panels
from fadeout.experiments.drawing import style_sheet


def results(
    seed: int, settings: Settings, outcomes: list[Outcome], fading: Fading, shrunk: list[Shrunk]
) -> dict[str, Any]:
    """What was run, on what, and all that came of it."""
    return {
        "seed": seed,
        "settings": asdict(settings),
        "versions": {
            "fadeout": __version__,
            "python": platform.python_version(),
            **{package: version(package) for package in ("torch", "numpy", "scikit-learn")},
        },
        "machine": f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} thread(s)",
        "outcomes": [asdict(outcome) for outcome in outcomes],
        "shrunk": [asdict(line) for line in shrunk],
        "fading": asdict(fading),
    }


def write_results(path: Path, values: dict[str, Any]) -> None:
    """Write ``results`` as JSON, lists of numbers on one line."""
    text = json.dumps(values, indent=2)
    text = re.sub(r"\[([-\d.,\s]+)\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    write_atomically(path, lambda p: p.write_text(text + "\n", encoding="utf-8"))


def write_report(path: Path, data: Dataset, values: dict[str, Any]) -> None:
    """Write ``results`` as a page that needs nothing else: style and figures are inside."""
    settings = Settings(**values["settings"])
    outcomes = [Outcome(**outcome) for outcome in values["outcomes"]]
    accuracy, fading = panels(outcomes, Fading(**values["fading"]))
    page = Template(files("fadeout.experiments.demo").joinpath("report.html").read_text(encoding="utf-8"))
    text = page.substitute(
        style=style_sheet(),
        lead=_lead(data, outcomes),
        note=_note(settings),
        tiles="".join(map(_tile, _hardest(outcomes))),
        accuracy=accuracy,
        fading=fading,
        shown=percent(settings.shown),
        rows="".join(_group(list(group)) for _, group in groupby(_by_target(outcomes), lambda o: o.sparsity)),
        shrunk=_shrunk([Shrunk(**line) for line in values["shrunk"]]),
        rounds=settings.rounds,
        longest=max(o.epochs for o in outcomes),
        epochs=settings.epochs,
        tests=len(data.test_y),
        picture=f"{100 / len(data.test_y):.2f}",
        conditions="".join(
            f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in _conditions(values).items()
        ),
    )
    write_atomically(path, lambda p: p.write_text(text, encoding="utf-8"))


def _lead(data: Dataset, outcomes: list[Outcome]) -> str:
    change = max(abs(o.after - o.before) for o in outcomes if o.method == "fadeout")
    removal = (
        f"changed the accuracy by at most {change:.2f} points" if change else "did not change the accuracy"
    )
    return (
        f"A small convolutional network of {outcomes[0].total:,} weights learns to read "
        f"{len(data.train_y):,} handwritten digits, and is pruned in three ways, always from the same "
        f"initialisation. For fadeout's networks, removal {removal}."
    )


def _note(settings: Settings) -> str:
    if settings.epochs >= Settings().epochs:
        return ""
    return f'<p class="note card">A quick run of {settings.epochs} epochs: the accuracies mean nothing.</p>'


def _hardest(outcomes: list[Outcome]) -> list[Outcome]:
    """The dense network, and the methods at the highest target, best first."""
    dense, *others = _by_target(outcomes)
    highest = [o for o in others if o.sparsity == others[-1].sparsity]
    return [dense, *sorted(highest, key=lambda o: -o.final)]


def _by_target(outcomes: list[Outcome]) -> list[Outcome]:
    return sorted(outcomes, key=lambda o: o.sparsity)


def _tile(o: Outcome) -> str:
    return (
        f'<div class="card tile" style="--tile: var(--{o.method})"><b>{o.final:.2f} %</b>'
        f"<span>{label(o.method, o.sparsity)}</span>"
        f"<span>{o.left:,} weights</span><span>{o.epochs} epochs</span></div>"
    )


def _group(outcomes: list[Outcome]) -> str:
    """One target's part of the table."""
    first = outcomes[0]
    name = f"{percent(first.sparsity)} removed" if first.sparsity else "nothing removed"
    rows = [
        f'<tr><th scope="rowgroup" colspan="5">{name} <small>{first.left:,} weights left</small></th></tr>'
    ]
    rows += [
        f'<tr class="{o.method}" style="--method: var(--{o.method})"><td>{o.method}</td>'
        f"<td>{o.before:.2f}</td><td{_FELL if o.before - o.after > 1 else ''}>{o.after:.2f}</td>"
        f"<td>{o.final:.2f}</td><td>{o.epochs}</td></tr>"
        for o in outcomes
    ]
    return f"<tbody>{''.join(rows)}</tbody>\n"


def _shrunk(lines: list[Shrunk]) -> str:
    """The table of the networks of which channels were cut out."""
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("removed", *map(_unbroken, SHRUNK_HEADINGS)))
    rows = [
        f'<tr style="--method: var(--{"fadeout" if line.sparsity else "dense"})">'
        f"<td>{percent(line.sparsity) if line.sparsity else 'nothing'}</td>"
        + "".join(f"<td>{cell}</td>" for cell in shrunk_cells(line, lines[0]))
        + "</tr>"
        for line in lines
    ]
    return f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody>"


def _unbroken(heading: str) -> str:
    return heading.replace("-\n", "").replace("\n", "<br>")


_FELL = ' class="fell"'  # removal cost more than a point


def _conditions(values: dict[str, Any]) -> dict[str, str]:
    s = Settings(**values["settings"])
    return {
        "training": f"{s.epochs} epochs in batches of {s.batch_size}; SGD with momentum {s.momentum:g} and "
        f"weight decay {s.weight_decay:g}; learning rate {s.learning_rate:g}, after a third of the steps a "
        "tenth of it, after two thirds a hundredth",
        "fine-tuning": f"{s.rounds} rounds of {s.round_epochs} epochs at learning rate {s.round_rate:g}",
        "pruned": "all weights but the biases, ranked by magnitude over the whole network",
        "seed": str(values["seed"]),
        "versions": ", ".join(f"{name} {number}" for name, number in values["versions"].items()),
        "machine": values["machine"],
        "time": f"{sum(o['seconds'] for o in values['outcomes']):.0f} seconds",
    }
