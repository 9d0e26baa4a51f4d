"""How the demo shows itself in a terminal: live bars while it trains, one table at the end."""

from typing import Any

from fadeout._checks import extra
from fadeout.experiments.demo.compare import Outcome
from fadeout.experiments.demo.shrinking import Shrunk

with extra("experiments"):
    from rich import box
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.table import Table
    from rich.text import Text


def percent(fraction: float) -> str:
    """A fraction in percent, without needless digits.

    >>> percent(0.95), percent(0.995)
    ('95 %', '99.5 %')
    """
    return f"{100 * fraction:.4g} %"


def label(method: str, sparsity: float) -> str:
    """A method and its target.

    >>> label("fadeout", 0.95), label("dense", 0.0)
    ('fadeout 95 %', 'dense')
    """
    return f"{method} {percent(sparsity)}" if sparsity else method


class Bars:
    """Live bars: the training that runs now, with its figures, and all of them together.

    Where the output is no terminal, there is a line for each method and target instead.

    Args:
        console: where to.
        steps: of the whole comparison.
    """

    def __init__(self, console: Console, steps: int):
        self._console, self._epochs = console, 0
        self._progress = Progress(
            TextColumn("{task.description}", style="bold"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            _Speed(),
            TimeRemainingColumn(compact=True),
            console=console,
            expand=True,
        )
        self._now = self._progress.add_task("", total=None)
        self._all = self._progress.add_task("all trainings", total=steps)
        self._figures: dict[str, Any] = {}
        self._live = Live(get_renderable=self._render, console=console, transient=True, refresh_per_second=8)

    def __enter__(self) -> "Bars":
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def begin(self, method: str, sparsity: float, epochs: int, steps: int) -> None:
        self._figures, self._epochs = {}, epochs
        self._progress.reset(self._now, total=steps, description=label(method, sparsity))

    def step(self, figures: dict[str, Any]) -> None:
        self._figures |= figures  # what comes once in an epoch stays until the next
        self._progress.advance(self._now)
        self._progress.advance(self._all)

    def end(self, outcome: Outcome) -> None:
        if not self._console.is_terminal:
            name = label(outcome.method, outcome.sparsity)
            self._console.print(f"{name}: {outcome.final:.2f} % accuracy after {outcome.seconds:.0f} s")

    def _render(self) -> Group:
        f = self._figures
        parts = [f"epoch {f['epoch'] + 1}/{self._epochs}", f"loss {f['loss']:.3f}"] if f else []
        for name, shown in _SHOWN.items():
            if name in f:
                parts.append(shown.format(f[name]))
        return Group(self._progress, Text("  ".join(parts), style="dim", no_wrap=True, overflow="ellipsis"))


_SHOWN = {
    "accuracy": "test {:.2f} %",
    "sparsity": "sparsity {:.1%}",
    "factor": "factor {:.3f}",
    "fade": "fade {:.0e}",
}


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.0f} steps/s" if task.speed else "", style="dim")


def table(outcomes: list[Outcome]) -> Table:
    """The one table: every method at every target."""
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
    grid = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title="channels cut out",
        title_justify="left",
    )
    grid.add_column("target")
    for heading in _SHRUNK:
        grid.add_column(heading, justify="right")
    for line in lines:
        grid.add_row(percent(line.sparsity) if line.sparsity else "dense", *shrunk_cells(line, lines[0]))
    return grid


def shrunk_cells(line: Shrunk, dense: Shrunk) -> list[str]:
    """The cells of a line, in the order of the headings."""
    return [
        *(f"{value:.2f}" for value in (line.before, line.after, line.compact)),
        f"{line.parameters:,}",
        f"{line.operations:,}",
        f"{line.bytes:,}",
        f"{line.microseconds:.1f}",
        f"{dense.microseconds / line.microseconds:.1f}x",
    ]


_SHRUNK = (
    "before\nremoval",
    "after\nremoval",
    "cut\nout",
    "para-\nmeters",
    "oper-\nations",
    "bytes",
    "µs a\npicture",
    "as\nfast",
)
SHRUNK_HEADINGS = tuple(heading.replace("-\n", "").replace("\n", "<br>") for heading in _SHRUNK)
