"""From records to groups: mean and std over seeds, and the paper's values beside them."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from fadeout.experiments.paper import same
from fadeout.experiments.report.formatting import joined
from fadeout.experiments.report.groups import METRICS, Group, alike, anchor
from fadeout.experiments.report.records import Record, Section
from fadeout.experiments.report.standings import add_margins
from fadeout.experiments.report.statistics import estimate
from fadeout.experiments.report.styles import METHODS
from fadeout.experiments.run import DEFAULTS
from fadeout.methods import registry

FIELDS = ("data", "network", "width", "structure", "method", "sparsity", "a_min", "a_max")
"""What a group and a published value are compared by."""

_WITHOUT_STRENGTHS = [name for name, method in registry.METHODS.items() if "a_min" not in method.options]
"""Methods that have no ``a_min`` and ``a_max``, whatever their runs say."""


def group_runs(section: Section) -> list[Group]:
    """The groups of a section's runs, and of the paper's values that no run has, in the order of a table."""
    ours = add_margins(_estimates(section))
    return sorted([*ours, *_add_published(ours, section.published)], key=_order)


def _estimates(section: Section) -> Iterator[Group]:
    records = alike(
        sorted(section.records, key=_seed), lambda record: repr(sorted(_changed(_settings(record)).items()))
    )
    runs = [_settings(members[0]) for members in records.values()]
    for members, run, note in zip(records.values(), runs, _notes(runs), strict=True):
        found = [_metrics(record) for record in members if record["status"] == "done"]
        values = {metric: [one[metric] for one in found if one[metric] is not None] for metric in METRICS}
        yield replace(
            _identity(run),
            note=note,
            settings=run,
            anchor=anchor(section.name, members[0]["hash"]),
            records=tuple(members),
            estimates={metric: estimate(numbers) for metric, numbers in values.items() if numbers},
        )


def _seed(record: Record) -> tuple[float, str]:
    seed = record["run"].get("seed")
    return (seed if isinstance(seed, (int, float)) else -1, record["hash"])


def _settings(record: Record) -> Record:
    return {name: value for name, value in record["run"].items() if name != "seed"}


def _changed(run: Record) -> Record:
    """The settings that are not at their defaults: records of an earlier version leave some of those out."""
    return {name: value for name, value in run.items() if name not in DEFAULTS or value != DEFAULTS[name]}


def _metrics(record: Record) -> dict[str, Any]:
    """What a run that is done has come to."""
    run, before, seconds = record["run"], record.get("before"), record.get("seconds")
    epochs = (run.get("epochs") or 0) * (run.get("epochs_scale") or 1.0)
    if run.get("steps") is not None:
        epochs = 0  # an epoch that was cut says nothing of a whole one
    values = {
        "seconds": seconds / epochs if epochs and seconds is not None else None,
        "after": record["after"],
        "change": None if before is None else record.get("removed", record["after"]) - before,
        "before": before,
        "decided": _decided(record.get("overlap") or []),
        "top5": record.get("top5"),
    }
    for part in ("operations", "parameters"):
        total, left = record.get(part), record.get(f"{part}_left")
        values[part] = None if not total or left is None else 100 * left / total
    whole, left = record.get("milliseconds"), record.get("milliseconds_left")
    return values | {"faster": whole / left if whole and left else None}


def _decided(overlap: Sequence[tuple[float, float]]) -> float | None:
    """From when on 99 % of the final kept set were kept."""
    late = itertools.takewhile(lambda point: point[1] >= 0.99, reversed(overlap))
    return min((100 * progress for progress, _ in late), default=None)


def _identity(run: Record) -> Group:
    """The group of a run, by what a table shows of it."""
    method = str(run.get("method"))
    setup = (run.get("data"), run.get("model"), run.get("width"), run.get("structure"))
    sparsity = 0.0 if method == "dense" else run.get("sparsity") or 0.0
    strengths = (None, None) if method in _WITHOUT_STRENGTHS else (run.get("a_min"), run.get("a_max"))
    return Group(*setup, method, sparsity, *strengths, run.get("epochs_scale") or 1.0, run.get("steps"))


def _notes(runs: Sequence[Record]) -> Iterator[str]:
    """For each run, the settings that tell it apart from another that looks the same in a table.

    They are named for all runs of a method, so that a curve keeps one name along its points.
    """
    telling = set()
    for members in alike(runs, lambda run: repr(_identity(run))).values():
        for name in {name for run in members for name in run} - {"validation"}:
            if len({repr(_setting(run, name)) for run in members}) > 1:
                telling.add((str(members[0].get("method")), name))
    for run in runs:
        names = sorted(name for method, name in telling if method == str(run.get("method")))
        values = ((name, _setting(run, name)) for name in names)
        settings = (
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in values
        )
        yield joined(*settings, "tested on held-out training data" if run.get("validation") else "")


def _setting(run: Record, name: str) -> Any:
    return run.get(name, DEFAULTS.get(name))


def _order(group: Group) -> tuple[Any, ...]:
    listed = list(METHODS).index(group.method) if group.method in METHODS else len(METHODS)
    names = ((name is not None, name) for name in (group.data, group.network, group.structure))
    strengths = (-1.0 if a is None else a for a in group.strengths)
    method = (listed, group.method, *strengths, -group.scale, group.steps or 0, group.note)
    return (*names, group.width or 0, group.sparsity, *method)


def _add_published(ours: Sequence[Group], published: Sequence[Any]) -> list[Group]:
    """Give our groups the paper's values that fit them best, and return groups of those that fit none."""
    used: set[Any] = set()
    for group in ours:
        fits = {value: fit for value in published if (fit := _fit(group, value, FIELDS))}
        for value in sorted(fits, key=fits.__getitem__, reverse=True):
            group.published.setdefault(value.metric, value.value)
        used |= fits.keys()
    alone: dict[tuple[Any, ...], Group] = {}
    for value in published:
        if value not in used:
            said = [None if x == "none" else x for x in (getattr(value, name) for name in FIELDS)]
            setup = next((group.setup for group in ours if _fit(group, value, FIELDS[:4])), said[:4])
            key: list[Any] = [*setup, value.method, value.sparsity or 0.0, *said[6:]]
            alone.setdefault(tuple(key), Group(*key)).published.setdefault(value.metric, value.value)
    return list(alone.values())


def _fit(group: Group, value: Any, names: Sequence[str]) -> float:
    """1 and how many fields of a published value say that it is this group's; 0 if one says that it is not.

    A field that is None says nothing. A table is more exact than the figure that was drawn from it.
    """
    said = [name for name in names if getattr(value, name) not in (None, "none")]
    fits = all(same(getattr(value, name), getattr(group, name)) for name in said)
    return fits * (1 + len(said) + 0.5 * value.source.startswith("Table"))
