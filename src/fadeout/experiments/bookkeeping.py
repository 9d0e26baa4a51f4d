"""The bookkeeping of an experiment: which of its runs are meant, which are done, and their records."""

import fcntl
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fadeout._checks import known
from fadeout.experiments.disk.record_file import Record, read_records, write_records
from fadeout.experiments.progress import Progress, look
from fadeout.experiments.run import Run
from fadeout.experiments.sweep import sweep


@dataclass(frozen=True)
class Plan:
    """What is to be done of an experiment.

    Attributes:
        runs: those that are meant.
        kept: the records of those that ``results/<name>.jsonl`` knows as done, which is enough to go on from.
    """

    name: str
    runs: list[Run]
    kept: list[Record]
    results: Path

    @property
    def left(self) -> list[Run]:
        """The runs that have no record yet; the folders of some may hold one."""
        kept = {record["hash"] for record in self.kept}
        return [run for run in self.runs if run.hash not in kept]

    @property
    def finished(self) -> int:
        """How many runs are done."""
        return len(self.kept) + sum((self.results / run.hash / "result.json").exists() for run in self.left)

    def look(self) -> list[Progress]:
        """How far each run is, whoever is at it; nothing is written."""
        records = collected(self.name, self.results)
        return [look(run, self.results, records.get(run.hash)) for run in self.runs]

    def carry_out(self, on_done: Callable[[int, Record], object], **options: Any) -> list[Record]:
        """Sweep over the runs that are left, and return all records.

        Each record is collected as it comes, so that a sweep that was stopped can be reported.

        Args:
            on_done: called with each record as it comes, and with how many there are by then.
            options: of :func:`~fadeout.experiments.sweep.sweep`.
        """
        number = itertools.count(len(self.kept) + 1)

        def note(record: Record) -> None:
            collect(self.name, [record], self.results)
            on_done(next(number), record)

        return self.kept + sweep(self.left, self.results, on_done=note, **options)


def plan(name: str, runs: Sequence[Run], results: Path, only: Sequence[str] = ()) -> Plan:
    """What is to be done of an experiment's runs.

    Args:
        only: conditions such as ``method=auto``; runs that meet all of them are meant.
    """
    meant = [run for run in runs if all(_meets(run, condition) for condition in only)]
    if not meant:
        raise ValueError(f"no run of {name} meets {' and '.join(only)}; {_choices(runs, only)}")
    hashes = {run.hash for run in meant}
    known_records = collected(name, results).values()
    kept = [record for record in known_records if record["status"] == "done" and record["hash"] in hashes]
    return Plan(name, meant, kept, results)


def collect(name: str, records: Iterable[Record], results: str | os.PathLike[str]) -> Path:
    """Write the records of an experiment into one file, ``results/<name>.jsonl``, beside those it holds.

    Several processes may do so at a time: each waits for its turn to read what is there and to add to it.
    """
    path = Path(results) / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / ".lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        together = collected(name, results)
        together |= {record["hash"]: record for record in records if record["status"] in ("done", "failed")}
        write_records(path, together.values())
    return path


def collected(name: str, results: str | os.PathLike[str]) -> dict[str, Record]:
    """The records that :func:`collect` has written, by the hashes of their runs."""
    path = Path(results) / f"{name}.jsonl"
    records = read_records(path).values() if path.exists() else ()
    return {record["hash"]: record for record in records}


def _meets(run: Run, condition: str) -> bool:
    name, equals, value = condition.partition("=")
    if not equals:
        raise ValueError(f"--only takes conditions such as method=auto, got {condition!r}")
    known("field", name, [field.name for field in fields(run)])
    found = getattr(run, name)
    if isinstance(found, float | int) and not isinstance(found, bool):
        try:
            return float(value) == float(found)
        except ValueError:
            raise ValueError(f"--only {name}= takes a number, got {value!r}") from None
    return value == str(found)


def _choices(runs: Sequence[Run], conditions: Sequence[str]) -> str:
    """What the fields named in conditions are."""
    names = dict.fromkeys(condition.partition("=")[0] for condition in conditions)
    values = {name: dict.fromkeys(str(getattr(run, name)) for run in runs) for name in names}
    return "; ".join(f"{name} is {' or '.join(found)}" for name, found in values.items())
