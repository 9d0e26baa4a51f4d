"""The live display of a run: where it is, how fast, and what the pruner does."""

import time
from typing import Any

from fadeout._checks import extra

with extra("experiments"):
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.text import Text


class Display:
    """Bars and figures that follow a run on a terminal; where there is none, a line for each test."""

    def __init__(self, console: "Console"):
        self._console, self._printed = console, -1
        self._progress = Progress(
            TextColumn("{task.description}", style="bold"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}", style="dim"),
            TimeRemainingColumn(compact=True),
            console=console,
            expand=True,
        )
        self._task = self._progress.add_task("", total=None, speed="")
        self._line, self._faded, self._fade = "", 0.0, 0.0
        self._first: tuple[float, int] | None = None
        self._live = Live(get_renderable=self._render, console=console, transient=True, refresh_per_second=4)

    def __enter__(self) -> "Display":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def __call__(self, now: dict[str, Any]) -> None:
        """Show the figures after a step."""
        if not self._console.is_terminal:
            if (
                now["top1"] is not None
                and now["epoch"] != self._printed
                and now["step"] % now["in_epoch"] == 0
            ):
                self._printed = now["epoch"]
                self._console.print(self._figures(now), highlight=False)
            return
        clock = time.monotonic()
        self._first = self._first or (clock, now["step"])
        seconds, steps = clock - self._first[0], now["step"] - self._first[1]
        speed = f"{steps / seconds:.1f} steps/s" if seconds > 0.5 else ""
        self._progress.update(
            self._task, completed=now["step"], total=now["steps"], description=now["phase"], speed=speed
        )
        if now["pruner"] is None:
            self._line = f"{self._figures(now)}  factor {now['factor']:.3f}"
            return
        if clock - self._faded > 2:  # to compute the fade takes a pass over all weights
            self._fade, self._faded = now["pruner"].fade, clock
        self._line = f"{self._figures(now)}  factor {now['factor']:.3f}  fade {self._fade:.0e}"

    def _figures(self, now: dict[str, Any]) -> str:
        test = f"  test {now['top1']:.2f} %" if now["top1"] is not None else ""
        epoch = f"{now['phase']}: epoch {now['epoch'] + 1}/{now['epochs']}"
        return f"{epoch}  loss {now['loss']:.3f}{test}  sparsity {now['sparsity']:.1%}"

    def _render(self) -> Group:
        return Group(self._progress, Text(self._line, style="dim", no_wrap=True, overflow="ellipsis"))
