"""What ``fadeout demo`` does."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from fadeout.cli.run_display import RunDisplay
from fadeout.experiments.data import digits
from fadeout.experiments.demo import Outcome, Settings, Shrunk, compare, shrink, shrunk_cells, shrunk_headings
from fadeout.experiments.demo.report import results, write_report, write_results
from fadeout.experiments.report.figures.demo import write_figure
from fadeout.experiments.report.formatting import percent
from fadeout.storage.network_file import save

_QUICK = Settings(epochs=5, round_epochs=1)


def demo(output: Path = Path("fadeout-demo"), seed: int = 0, *, quick: bool = False) -> None:
    """Compare ways to prune a network that reads handwritten digits.

    Trains a small convolutional network from one initialisation: dense, and pruned by 90, 95, 98 and 99 %
    with one-shot and iterative magnitude pruning and with fadeout. Then lets whole channels of it fade, cuts
    them out, and times the smaller network. Prints two tables, and writes a figure, the numbers, the
    smaller network and a report to read in a browser. Takes about two minutes.

    Args:
        output: the folder to write to.
        seed: of the initialisation and the order of the data.
        quick: train for a few epochs only, to see that it works; the accuracies mean nothing.
    """
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed is a whole number from 0 to 2**32 - 1, got {seed}")
    _check_writable(output)
    console = Console()
    settings = _QUICK if quick else Settings()
    data = digits()
    steps = settings.total_epochs * data.steps(settings.batch_size)
    with _one_thread(), RunDisplay(console, steps) as display:
        outcomes, fading = compare(settings, seed, display)
        shrunk, small = shrink(settings, seed, data, display)
        values = results(seed, settings, outcomes, fading, shrunk)
    console.print(outcome_table(outcomes))
    console.print(shrunk_table(shrunk))

    output.mkdir(parents=True, exist_ok=True)
    write_figure(output, outcomes, fading)
    write_results(output / "results.json", values)
    write_report(output / "report.html", data, values)
    save(small, output / "small.safetensors")
    names = ("report.html", "figure.png", "figure.svg", "results.json", "small.safetensors")
    where = "\n".join(f"  {output / name}" for name in names)
    console.print(f"Written, the report first:\n{where}", markup=False, highlight=False, soft_wrap=True)


def outcome_table(outcomes: list[Outcome]) -> Table:
    """Every method at every target."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column("target")
    grid.add_column("method")
    for heading in ("before\nremoval", "after\nremoval", "in the\nend", "weights\nleft", "epochs"):
        grid.add_column(heading, justify="right")
    for sparsity in sorted({outcome.sparsity for outcome in outcomes}):
        group = [outcome for outcome in outcomes if outcome.sparsity == sparsity]
        for number, o in enumerate(group):
            grid.add_row(
                percent(sparsity) if sparsity and not number else "",
                o.method,
                *(f"{value:.2f}" for value in (o.before, o.after, o.final)),
                f"{o.left:,}",
                str(o.epochs),
                style="bold" if o.method == "fadeout" else None,
                end_section=number == len(group) - 1,
            )
    return grid


def shrunk_table(lines: list[Shrunk]) -> Table:
    """What is left where whole channels were cut out."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    grid.title, grid.title_justify = "channels cut out", "left"
    grid.add_column("target")
    for heading in shrunk_headings(lines[0]):
        grid.add_column(heading, justify="right")
    for line in lines:
        grid.add_row(percent(line.sparsity) if line.sparsity else "dense", *shrunk_cells(line, lines[0]))
    return grid


def _check_writable(folder: Path) -> None:
    """Raise now where nothing could be written to the folder later; it need not exist yet."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ValueError(f"cannot write to {folder}: {existing} is a file, not a folder")
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error.strerror}") from error


@contextmanager
def _one_thread() -> Iterator[None]:
    """Operations this small gain nothing from a second thread, and lose much where the cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
