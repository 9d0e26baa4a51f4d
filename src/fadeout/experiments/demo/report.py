"""What the demo leaves behind: the numbers as JSON, and a report in one file."""

import json
import platform
import re
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from fadeout import __version__
from fadeout._files import write_text
from fadeout.experiments.data import Dataset
from fadeout.experiments.demo import ENGINES, Outcome, Settings, Shrunk
from fadeout.experiments.demo.fading import Fading
from fadeout.experiments.report.figures.demo import panels
from fadeout.experiments.report.page import render


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
    write_text(path, text + "\n")


def write_report(path: Path, data: Dataset, values: dict[str, Any]) -> None:
    """Write ``results`` as a page that needs nothing else: style and figures are inside."""
    outcomes = [SimpleNamespace(**outcome) for outcome in values["outcomes"]]
    dense, *others = sorted(outcomes, key=lambda o: o.sparsity)
    hardest = [o for o in others if o.sparsity == others[-1].sparsity]
    text = render(
        "demo.html",
        **values,
        change=max(abs(o.after - o.before) for o in outcomes if o.method == "fadeout"),
        quick=values["settings"]["epochs"] < Settings().epochs,
        hardest=[dense, *sorted(hardest, key=lambda o: -o.final)],
        panels=panels(outcomes, Fading(**values["fading"])),
        engines={engine: ENGINES[engine] for engine in values["shrunk"][0]["milliseconds"]},
        train_images=len(data.train_y),
        test_images=len(data.test_y),
    )
    write_text(path, text)
