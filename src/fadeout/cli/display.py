"""The live display: which run it is, where in it, how fast, and what the pruner does."""

import time
from typing import Any

from fadeout._checks import extra

with extra("experiments"):
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
    from rich.text import Text


class Display:
    """Bars and figures that follow a run, or several, on a terminal; where there is none, lines.

    Args:
        console: where to.
        steps: of all runs, where there are several: they get a bar of their own, and without a terminal there
            is a line for each run. For a single run there is then a line for each test.
    """

    def __init__(self, console: Console, steps: int | None = None):
        self._console, self._steps, self._printed = console, steps, -1
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
        self._all = None if steps is None else self._progress.add_task("all trainings", total=steps)
        self._title, self._line, self._faded, self._fade = "", "", 0.0, 0.0
        self._live = Live(get_renderable=self._render, console=console, transient=True, refresh_per_second=4)

    def __enter__(self) -> "Display":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def begin(self, title: str) -> None:
        """The next of several runs begins."""
        self._title, self._faded = title, 0.0
        self._progress.reset(self._now)

    def end(self, line: str) -> None:
        """It has ended; the line says how."""
        if not self._console.is_terminal:
            self._console.print(line, highlight=False)

    def __call__(self, now: dict[str, Any]) -> None:
        """Show the figures after a step."""
        if not self._console.is_terminal:
            tested = now["top1"] is not None and now["step"] % now["in_epoch"] == 0
            if self._steps is None and tested and now["epoch"] != self._printed:
                self._printed = now["epoch"]
                self._console.print(_figures(now), highlight=False)
            return
        title = self._title or now["phase"]
        self._progress.update(self._now, completed=now["step"], total=now["steps"], description=title)
        if self._all is not None:
            self._progress.advance(self._all)
        self._line = f"{_figures(now)}  factor {now['factor']:.3f}"
        if now["pruner"] is not None:
            clock = time.monotonic()
            if clock - self._faded > 2:  # to compute the fade takes a pass over all weights
                self._fade, self._faded = now["pruner"].fade, clock
            self._line += f"  fade {self._fade:.0e}"

    def _render(self) -> Group:
        return Group(self._progress, Text(self._line, style="dim", no_wrap=True, overflow="ellipsis"))


def _figures(now: dict[str, Any]) -> str:
    test = f"  test {now['top1']:.2f} %" if now["top1"] is not None else ""
    epoch = f"{now['phase']}: epoch {now['epoch'] + 1}/{now['epochs']}"
    return f"{epoch}  loss {now['loss']:.3f}{test}  sparsity {now['sparsity']:.1%}"


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f} steps/s" if task.speed else "", style="dim")
