"""The live display: which run it is, where in it, how fast, how long still, and what the pruner does."""

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from rich import progress
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from fadeout.cli.chart import Chart, side_by_side

_POINTS = 400  # of a chart, at most: means of the steps between


class RunDisplay:
    """Bars, figures and charts that follow a run, or several, on a terminal; where there is none, lines.

    Args:
        steps: of all runs, where there are several: they get a bar of their own, and without a terminal there
            is a line for each run. For a single run there is then a line for each test.
    """

    def __init__(
        self, console: Console, steps: int | None = None, clock: Callable[[], float] = time.monotonic
    ):
        self._console, self._steps, self._clock, self._printed = console, steps, clock, -1
        self._progress = progress.Progress(
            progress.TextColumn("{task.description}", style="bold"),
            progress.BarColumn(bar_width=None),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[speed]}", style="dim"),
            progress.TextColumn("{task.fields[left]}", style="cyan"),
            console=console,
            expand=True,
        )
        fields: dict[str, Any] = {"speed": "", "left": ""}
        self._now = self._progress.add_task("", total=None, **fields)
        self._all = None if steps is None else self._progress.add_task("all trainings", total=steps, **fields)
        self._pace, self._pace_of_all, self._taken = Pace(clock), Pace(clock), 0
        self._title, self._line, self._faded, self._fade = "", "", 0.0, 0.0
        self._history = _History()
        self._live = Live(get_renderable=self._render, console=console, transient=True, refresh_per_second=4)

    def __enter__(self) -> "RunDisplay":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def begin(self, title: str) -> None:
        """The next of several runs begins."""
        self._title, self._faded, self._pace, self._history = title, 0.0, Pace(self._clock), _History()
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
        self._show(self._now, self._pace, now["step"], now["steps"], self._title or now["phase"])
        if self._all is not None:
            self._taken += 1
            self._show(self._all, self._pace_of_all, self._taken, self._steps or 0, "all trainings")
        self._history.add(now)
        self._line = f"{_figures(now)}  factor {now['factor']:.3f}"
        if now["pruner"] is not None:
            clock = time.monotonic()
            if clock - self._faded > 2:  # to compute the fade takes a pass over all weights
                self._fade, self._faded = now["pruner"].fade, clock
            self._line += f"  fade {self._fade:.0e}"

    def _show(self, task: Any, pace: "Pace", step: int, steps: int, title: str) -> None:
        pace.note(step)
        speed = f"{pace.speed:.1f} steps/s" if pace.speed else ""
        left = f"{duration((steps - step) / pace.speed)} left" if pace.speed else ""
        self._progress.update(task, completed=step, total=steps, description=title, speed=speed, left=left)

    def _render(self) -> Group:
        parts = [self._progress, Text(self._line, style="dim", no_wrap=True, overflow="ellipsis")]
        return Group(*parts, *side_by_side(self._console, self._history.charts(), others=3))


class Pace:
    """Steps in a second, of those that this process has taken: a run that is resumed begins in its middle."""

    def __init__(self, clock: Callable[[], float]):
        self._clock, self._first, self.speed = clock, None, 0.0

    def note(self, step: int) -> None:
        """So many are taken now. The first one, for which much is prepared, says nothing of the others."""
        self._first = self._first or (step, self._clock())
        steps, seconds = step - self._first[0], self._clock() - self._first[1]
        self.speed = steps / seconds if steps and seconds > 0 else 0.0


class _History:
    """What the charts of a run show."""

    def __init__(self):
        self._sums: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))
        self._steps = 1

    def add(self, now: dict[str, Any]) -> None:
        self._steps = now["steps"]
        place = now["step"] * _POINTS // max(1, now["steps"])
        for name, value in (("loss", now["loss"]), ("test", now["top1"]), ("sparsity", now["sparsity"])):
            if value is not None:
                found = self._sums[name][place]
                found[0], found[1] = found[0] + (100 * value if name == "sparsity" else value), found[1] + 1

    def charts(self) -> list[Chart]:
        def points(name: str) -> list[tuple[float, float]]:
            return [(place, total / number) for place, (total, number) in self._sums[name].copy().items()]

        whole, ends = (0.0, float(_POINTS)), ("start", "end of training")
        percent = {"test accuracy": points("test"), "sparsity": points("sparsity")}
        return [Chart("loss", {"": points("loss")}, whole, ends), Chart("%", percent, whole, ends)]


def duration(seconds: float) -> str:
    """In words that are as exact as it is.

    >>> duration(12.3), duration(75), duration(4000), duration(200_000)
    ('12 s', '1 min 15 s', '1 h 7 min', '2 d 8 h')
    """
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        whole = round(seconds / part) * part
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {smaller}"
    return f"{round(seconds)} s"


def _figures(now: dict[str, Any]) -> str:
    test = f"  test {now['top1']:.2f} %" if now["top1"] is not None else ""
    epoch = f"{now['phase']}: epoch {now['epoch'] + 1}/{now['epochs']}"
    return f"{epoch}  loss {now['loss']:.3f}{test}  sparsity {now['sparsity']:.1%}"
