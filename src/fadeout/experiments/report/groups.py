"""Runs that differ in nothing but the seed, their mean and spread, and the paper's value for them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from fadeout.experiments.report.records import Record

METHODS = {
    "dense": "dense",
    "one_shot": "one-shot",
    "han": "Han et al.",
    "liu": "Liu et al.",
    "rewinding": "LR rewinding",
    "gmp": "GMP",
    "swd": "SWD",
    "auto": "fadeout",
    "plain_decay": "plain decay",
    "growing_decay": "growing decay",
    "soft": "soft",
}
"""What the reader sees, in the order in which they are listed."""

NO_STRENGTH = ("dense", "one_shot", "han", "liu", "rewinding", "gmp", "auto")
"""Methods that have no ``a_min`` and ``a_max``, whatever their runs say."""


def _share(record: Record, what: str) -> float | None:
    total, left = record.get(what), record.get(f"{what}_left")
    return None if not total or left is None else 100 * left / total


def _change(record: Record) -> float | None:
    return None if record.get("before") is None else record.get("removed", record["after"]) - record["before"]


def _seconds(record: Record) -> float | None:
    run, seconds = record["run"], record.get("seconds")
    epochs = (run.get("epochs") or 0) * (run.get("epochs_scale") or 1.0)
    # An epoch that was cut says nothing of a whole one.
    return None if not epochs or seconds is None or run.get("steps") is not None else seconds / epochs


METRICS: dict[str, Callable[[Record], float | None]] = {
    "before": lambda record: record.get("before"),
    "after": lambda record: record["after"],
    "change": _change,
    "top5": lambda record: record.get("top5"),
    "operations": lambda record: _share(record, "operations"),
    "parameters": lambda record: _share(record, "parameters"),
    "seconds": lambda record: _seconds(record),
}
"""In percent, but the seconds of an epoch; ``change`` is what removal did, ``operations`` and ``parameters``
what is left."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, and the standard deviation of a sample, which a single seed has not.

    >>> Estimate.of([98.0, 98.5, 99.0])
    Estimate(mean=98.5, deviation=0.5, seeds=3)
    >>> Estimate.of([98.0])
    Estimate(mean=98.0, deviation=None, seeds=1)
    """

    mean: float
    deviation: float | None
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        finite = all(map(math.isfinite, values))
        spread = (stdev(values) if finite else math.nan) if len(values) > 1 else None
        return cls(fmean(values) if finite else math.nan, spread, len(values))


@dataclass(frozen=True)
class Place:
    """What is pruned, and how: each has a plot of its own."""

    data: str | None = None
    network: str | None = None
    width: int | None = None
    structure: str | None = None


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed; there are none where only the paper has a value."""

    place: Place
    method: str
    sparsity: float
    a_min: float | None = None
    a_max: float | None = None
    scale: float = 1.0
    steps: int | None = None
    """Of an epoch, if that was cut."""
    note: str = ""
    """What else tells it apart from others that look the same."""
    anchor: str = ""
    done: tuple[Record, ...] = ()
    failed: tuple[Record, ...] = ()
    published: dict[str, float | None] = field(default_factory=dict)

    @property
    def strengths(self) -> tuple[float | None, float | None]:
        return self.a_min, self.a_max

    @property
    def records(self) -> tuple[Record, ...]:
        return tuple(sorted(self.done + self.failed, key=seed_of))

    def estimate(self, metric: str) -> Estimate | None:
        values = [METRICS[metric](record) for record in self.done]
        known = [value for value in values if value is not None]
        return Estimate.of(known) if known else None

    def difference(self, metric: str) -> float | None:
        """Ours less the paper's."""
        ours, theirs = self.estimate(metric), self.published.get(metric)
        return None if ours is None or theirs is None else ours.mean - theirs


def seed_of(record: Record) -> tuple[float, str]:
    """What runs of a group are sorted by."""
    seed = record["run"].get("seed")
    return (seed if isinstance(seed, (int, float)) else -1, record["hash"])
