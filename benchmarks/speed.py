"""What pruning brings in milliseconds and megabytes: pages of their own under results/.

    python benchmarks/speed.py [PAGE ...] [--threads N ...]

Pages are widths, time_targets, stored_bytes and sparse_speed; by default all of them, about half an hour.
Each writes results/speed-PAGE.md and .json; from those of widths and time_targets comes results/speed.svg.
"""

import argparse
import inspect
from collections.abc import Sequence
from pathlib import Path

import sparse_speed
import speed_figure
import stored_bytes
import time_targets
import widths
from harness import RESULTS, surroundings

from fadeout._files import write_atomically
from fadeout.experiments.disk.run_folder import write_json

PAGES = {module.__name__: module for module in (widths, time_targets, stored_bytes, sparse_speed)}


def run(name: str, folder: Path, threads: Sequence[int] = ()) -> None:
    """Measure one page, print it and write it to a folder.

    Args:
        name: of the page.
        folder: where to write.
        threads: their numbers, for pages that have several; by default the page's own.
    """
    around, module = surroundings(), PAGES[name]
    takes = threads and "counts" in inspect.signature(module.measure).parameters
    found = module.measure(counts=tuple(threads)) if takes else module.measure()
    where = (
        f"{around['processor'] or 'an unnamed processor'}, torch {around['versions']['torch']}, commit "
        f"{around['commit']}; load before it began: {around['load']}."
    )
    text = f"{found.text()}\n\n{where}\n"
    print(text, flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"speed-{name.replace('_', '-')}"
    write_json(path.with_suffix(".json"), {**around, **found.as_dict()})
    write_atomically(path.with_suffix(".md"), lambda file: file.write_text(text))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=", ".join(PAGES))
    parser.add_argument("--threads", nargs="+", type=int, default=(), help="on a busy machine only 1 is fair")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder to write to")
    arguments = parser.parse_args()
    for name in arguments.pages or PAGES:
        if name not in PAGES:
            parser.error(f"no page {name!r}: there is {', '.join(PAGES)}")
        run(name, arguments.results, arguments.threads)
    if speed_figure.PAGES.issubset(path.stem for path in arguments.results.glob("speed-*.json")):
        speed_figure.draw(arguments.results)


if __name__ == "__main__":
    main()
