"""How far the runs of an experiment are, read from their folders alone, and how long the rest will take."""

import heapq
import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fadeout._files import parse_json
from fadeout.experiments.disk.record_file import Record, read_record
from fadeout.experiments.run import Run

PROGRESS = "progress.json"
_SILENT = 120.0  # seconds without a sign, after which nobody seems to be at a run


def write_progress(folder: Path, now: dict[str, Any]) -> None:
    """Tell whoever looks at the folder how far its run is; a disk that is full must not stop the run."""
    temporary = folder / f".{PROGRESS}.tmp"
    with suppress(OSError):
        temporary.write_text(json.dumps(now))
        temporary.replace(folder / PROGRESS)


@dataclass(frozen=True)
class Progress:
    """How far one run is.

    Attributes:
        state: where it stands; ``silent`` is one that was begun, and gives no sign any more.
        now: what it last said of itself: ``step`` of ``steps``, ``seconds`` spent, ``loss``, ``top1``, ...
        begun: when, in seconds since 1970; the time that it rested does not count.
        heard: when it last gave a sign.
        tests: what its metrics hold, while it is under way.
    """

    run: Run
    state: Literal["waiting", "running", "silent", "done", "failed"]
    now: dict[str, Any] = field(default_factory=dict)
    begun: float = 0.0
    heard: float = 0.0
    tests: list[dict[str, Any]] = field(default_factory=list)
    record: Record | None = None

    @property
    def training(self) -> float | None:
        """How many seconds all its steps and tests take, if that can be told."""
        if self.record is not None:
            return self.record.get("seconds")
        return self.now["seconds"] * self.now["steps"] / self.now["step"] if self.now.get("step") else None

    @property
    def around(self) -> float | None:
        """How many seconds went by before and after them, if it is done: data are read, outcomes measured."""
        if self.state != "done" or not self.begun or self.training is None:
            return None
        return max(0.0, self.heard - self.begun - self.training)


def look(run: Run, results: Path, collected: Record | None = None, clock: float | None = None) -> Progress:
    """How far a run is. Nothing is written, and no lock is taken.

    Args:
        run: which.
        results: the folder of all runs.
        collected: its record, if the experiment's file has one.
        clock: seconds since 1970; by default now.
    """
    folder, clock = results / run.hash, time.time() if clock is None else clock
    begun = _time(folder / "config.json")  # written anew when it is resumed
    if (record := _read(folder / "result.json", read_record)) is not None:
        return Progress(run, "done", {}, begun, _time(folder / "result.json"), record=record)
    if collected is not None and collected["status"] == "done":
        return Progress(run, "done", record=collected)
    now = _read(folder / PROGRESS, lambda path: dict(parse_json(path.read_bytes()))) or {}
    heard = max(begun, _time(folder / PROGRESS))
    failure = _read(folder / "failed.json", read_record) or collected
    silent = clock - heard > _SILENT
    if failure is not None and (silent or heard <= _time(folder / "failed.json")):
        return Progress(run, "failed", record=failure)
    if now:
        begun = min(begun, heard - now["seconds"])
    if silent:
        return Progress(run, "silent" if heard else "waiting", now, begun, heard)
    tests = _read(folder / "metrics.jsonl", _read_tests) or []
    return Progress(run, "running", now, begun, heard, tests)


def _read(path: Path, how: Callable[[Path], Any]) -> Any:
    """A file that another process writes: nothing where it is not there, or not whole."""
    try:
        return how(path)
    except (OSError, ValueError, TypeError):
        return None


def _read_tests(path: Path) -> list[dict[str, Any]]:
    return [parse_json(line) for line in path.read_bytes().split(b"\n")[:-1]]


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


# How long it will take ------------------------------------------------------------------------------------


class Estimate:
    """How long runs take, from those that are done or under way.

    A run takes as long as its steps so far say, or else, for each epoch, as long as those that are most like
    it: equal up to seed and target, or else with the same network, data and structure, or at least network
    and data; and as long besides as those before their first step and after their last.

    Args:
        before: hashes of runs that were done before: on another day, or on another machine. They count only
            where nothing else is known.
    """

    def __init__(self, states: Sequence[Progress], clock: float, before: Iterable[str] = ()):
        self._states, self._clock = states, clock
        old = set(before)
        self._epoch: dict[Any, list[float]] = {}
        self._around: dict[Any, list[float]] = {}
        for state in sorted(states, key=lambda state: state.run.hash in old):
            for kind in _kinds(state.run):
                if state.training is not None and (state.run.hash not in old or kind not in self._epoch):
                    self._epoch.setdefault(kind, []).append(state.training / state.run.total_epochs)
                if state.around is not None and state.run.hash not in old:
                    self._around.setdefault(kind, []).append(state.around)

    def of(self, state: Progress) -> float | None:
        """The seconds until a run is done, from when somebody is at it; nothing where that cannot be told."""
        around = _mean(self._around, state.run) or 0.0
        each = _mean(self._epoch, state.run)
        training = state.training if state.training is not None else each and each * state.run.total_epochs
        if training is None:
            return None
        spent = self._clock - state.begun if state.state == "running" else state.now.get("seconds", 0.0)
        return max(0.0, training + around - spent)

    def all(self, jobs: int) -> float | None:
        """The seconds until all are done; those that wait are dealt out to whoever is free first."""
        under_way = [self.of(state) for state in self._states if state.state == "running"]
        waiting = [self.of(state) for state in self._states if state.state in ("waiting", "silent")]
        if None in under_way or None in waiting:
            return None
        workers = [seconds or 0.0 for seconds in under_way] + [0.0] * (jobs - len(under_way))
        heapq.heapify(workers)
        for seconds in waiting:
            heapq.heapreplace(workers, workers[0] + (seconds or 0.0))
        return max(workers)


def _mean(found: dict[Any, list[float]], run: Run) -> float | None:
    """Of the runs that are most like it."""
    for kind in _kinds(run):
        if kind in found:
            return sum(found[kind]) / len(found[kind])
    return None


def _kinds(run: Run) -> tuple[Any, ...]:
    """What decides how long an epoch takes, the finest first."""
    network = (run.data, run.model, run.width, run.steps)
    like = (*network, run.batch_size, run.structure, run.precision, run.compile, run.evaluate_every)
    return (*like, run.method, run.optimizer, run.soft), like, network
