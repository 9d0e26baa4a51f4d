"""What the pruner's step costs: all benchmarks, about ten minutes on two idle cores.

    python benchmarks/run.py [--quick] [--results FOLDER]

Prints the tables and writes bench.json, bench.md and bench.svg to results/. ``--quick`` only shows that
everything runs: its sizes are tiny, its figures mean nothing, and it writes to the folder that is named.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import figure
import growth
import memory
import rivals
import scaling
import step_cost
import training_step
from harness import RESULTS, surroundings
from rows import Part

from fadeout._files import write_atomically
from fadeout.experiments.disk.run_folder import write_json

MODULES = (step_cost, memory, growth, training_step, rivals, scaling)
FULL: dict[str, Callable[[], Part]] = {module.__name__: module.measure for module in MODULES}
QUICK: dict[str, Callable[[], Part]] = {
    module.__name__: lambda module=module: module.measure(**module.QUICK) for module in MODULES
}


def run(parts: Mapping[str, Callable[[], Part]], folder: Path) -> None:
    """Run the benchmarks one after the other, print what they find and write it to a folder.

    Args:
        parts: what to run, by name.
        folder: where to write.
    """
    around = surroundings()
    if around["load"] > 0.3 * (os.cpu_count() or 1):
        print(f"the machine is busy (load {around['load']}): the figures will be worth little\n")
    found: dict[str, Part] = {}
    started = time.perf_counter()
    for name, part in parts.items():
        found[name] = part()
        print(f"{found[name].text()}\n", flush=True)
    seconds = time.perf_counter() - started
    folder.mkdir(parents=True, exist_ok=True)
    outcome = {name: part.as_dict() for name, part in found.items()}
    write_json(folder / "bench.json", {**around, "seconds": round(seconds), "parts": outcome})
    write_atomically(folder / "bench.md", lambda path: path.write_text(_markdown(found, around)))
    figure.draw(outcome.get("growth", {}), outcome.get("rivals", {}), folder / "bench.svg")
    targets = [row.met for part in found.values() for row in part.rows if row.met is not None]
    print(f"{sum(targets)} of {len(targets)} targets met, in {seconds:.0f} seconds. Written to {folder}")


def _markdown(found: Mapping[str, Part], around: Mapping[str, object]) -> str:
    versions = around["versions"]
    assert isinstance(versions, dict)
    where = (
        f"`make bench` on {around['processor'] or 'an unnamed processor'} ({around['machine']}), "
        f"torch {versions['torch']}, commit {around['commit']}; load before it began: {around['load']}."
    )
    return "\n\n".join([where, *(part.text() for part in found.values())]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does everything run?")
    parser.add_argument("--results", type=Path, help="the folder to write to; by default results/")
    arguments = parser.parse_args()
    if not arguments.quick:
        run(FULL, arguments.results or RESULTS)
    elif arguments.results:
        run(QUICK, arguments.results)
    else:
        with tempfile.TemporaryDirectory() as folder:
            run(QUICK, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
