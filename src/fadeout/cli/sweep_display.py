"""The live display of many runs, whoever carries them out."""

import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fadeout.cli.chart import Chart, side_by_side
from fadeout.cli.run_display import duration
from fadeout.experiments.progress import Estimate, Progress
from fadeout.methods.registry import METHODS


class SweepDisplay:
    """How far all runs of an experiment are, whoever carries them out: it looks at their folders alone.

    Args:
        look: how far each run is, as :func:`fadeout.experiments.progress.look` tells.
        jobs: how many runs there are at a time; by default as many as are under way.
    """

    def __init__(
        self,
        console: Console,
        look: Callable[[], list[Progress]],
        jobs: int | None = None,
        clock: Callable[[], float] = time.time,
    ):
        self._console, self._look, self._jobs, self._clock = console, look, jobs, clock
        self.states = look()
        self._before = {state.run.hash for state in self.states if state.state == "done"}
        self._looked = time.monotonic()
        self._live = Live(get_renderable=self._render, console=console, transient=True, refresh_per_second=2)

    def __enter__(self) -> "SweepDisplay":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def look(self) -> list[Progress]:
        """Look again, and return how far each run is."""
        self.states = self._look()
        self._looked = time.monotonic()
        return self.states

    @property
    def over(self) -> bool:
        """Whether each run is done, or has failed."""
        return all(state.state in ("done", "failed") for state in self.states)

    @property
    def deserted(self) -> bool:
        """Whether some runs are left, and nobody is at one of them."""
        return not self.over and not any(state.state == "running" for state in self.states)

    def say(self, line: str) -> None:
        """A line that stays, above what changes."""
        if self._console.is_terminal:
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)
        else:
            print(line, flush=True)

    def left(self) -> str:
        """How long it will take still, in words; nothing where that cannot be told."""
        running = sum(state.state == "running" for state in self.states)
        if not running and self._jobs is None:
            return "nobody is at it" if self.deserted else ""
        seconds = self._estimate().all(self._jobs or running)
        return "" if seconds is None or self.over else f"about {duration(seconds)} left"

    def _estimate(self) -> Estimate:
        return Estimate(self.states, self._clock(), self._before)

    def _render(self) -> RenderableType:
        if time.monotonic() - self._looked > 1:
            self.look()
        done = sum(state.state == "done" for state in self.states)
        failed = sum(state.state == "failed" for state in self.states)
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=3)
        table.add_column(ratio=2)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=3)
        total = f"{done} of {len(self.states)} runs" + (f", {failed} failed" if failed else "")
        bar = ProgressBar(total=len(self.states), completed=done + failed)
        table.add_row(Text(total, style="bold"), bar, Text(self.left(), style="cyan"))
        under_way = [state for state in self.states if state.state in ("running", "silent")]
        room = max(1, self._console.height - 6)
        for state in under_way[:room]:
            table.add_row(*self._row(state))
        return Group(table, *side_by_side(self._console, self._charts(under_way), others=len(under_way) + 2))

    def _row(self, state: Progress) -> tuple[RenderableType, ...]:
        now, left = state.now, self._estimate().of(state)
        bar = ProgressBar(total=now.get("steps", 1), completed=now.get("step", 0))
        if state.state == "silent":
            said = f"no sign for {duration(self._clock() - state.heard)}"
        elif not now:
            said = "begins"
        else:
            test = f"test {now['top1']:.2f} %  " if now.get("top1") is not None else ""
            said = f"{duration(left or 0.0)} left  {test}loss {now['loss']:.3f}"
        return Text(str(state.run)), bar, Text(said, style="dim")

    def _charts(self, under_way: Sequence[Progress]) -> list[Chart]:
        """Accuracies through the trainings under way, and of what is done against what was removed."""
        trainings = {
            f"{state.run.method} {100 * state.run.sparsity:g} %, seed {state.run.seed}": [
                (test["epoch"], test["top1"]) for test in state.tests
            ]
            for state in under_way
            if state.tests
        }
        last = max((state.now.get("epochs", 1) for state in under_way), default=1)
        outcomes: dict[str, list[tuple[float, float]]] = {}
        for state in self.states:
            if state.state == "done" and state.record is not None and state.run.method != "dense":
                name = METHODS[state.run.method].label
                outcomes.setdefault(name, []).append((100 * state.run.sparsity, state.record["after"]))
        found = []
        if trainings:
            span, ends = (0.0, float(max(1, last - 1))), ("start", "end of training")
            found.append(Chart("test accuracy, %", trainings, span, ends))
        if outcomes:
            removed = [x for points in outcomes.values() for x, _ in points]
            ends = (f"{min(removed):g} %", f"{max(removed):g} % removed")
            found.append(Chart("in the end, %", outcomes, ends=ends, joined=False))
        return found
