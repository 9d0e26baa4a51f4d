"""The demo: every method on one small network, in a minute or two, on data that come along."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from fadeout._checks import extra
from fadeout.experiments.data import digits
from fadeout.experiments.demo.compare import Comparison, Settings
from fadeout.experiments.demo.display import Bars, shrunk_table, table
from fadeout.experiments.demo.report import results, write_report, write_results
from fadeout.experiments.demo.shrinking import shrink
from fadeout.experiments.report.figures.demo import Fading, write_figure
from fadeout.storage.checkpoint import save

with extra("experiments"):
    from rich.console import Console

_QUICK = Settings(epochs=5, round_epochs=1)


def demo(output: Path = Path("fadeout-demo"), seed: int = 0, *, quick: bool = False) -> None:
    """Compare ways to prune a network that reads handwritten digits.

    Trains a small convolutional network from one initialisation: dense, and pruned by 90, 95, 98 and 99 %
    with one-shot and iterative magnitude pruning and with fadeout. Then lets whole channels of it fade, cuts
    them out, and measures the smaller network. Prints two tables, and writes a figure, the numbers, the
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
    with _one_thread(), Bars(console, settings.total_epochs * data.steps(settings.batch_size)) as bars:
        comparison = Comparison(data, settings, seed, bars)
        comparison.run()
        fading = Fading.of(settings.shown, comparison.snapshots, comparison.stays)
        shrunk, small = shrink(comparison)
        values = results(seed, settings, comparison.outcomes, fading, shrunk)
    console.print(table(comparison.outcomes))
    console.print(shrunk_table(shrunk))

    output.mkdir(parents=True, exist_ok=True)
    write_figure(output, comparison.outcomes, fading)
    write_results(output / "results.json", values)
    write_report(output / "report.html", data, values)
    save(small, output / "small.safetensors")
    names = ("report.html", "figure.png", "figure.svg", "results.json", "small.safetensors")
    where = "\n".join(f"  {output / name}" for name in names)
    console.print(f"Written, the report first:\n{where}", markup=False, highlight=False, soft_wrap=True)


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
