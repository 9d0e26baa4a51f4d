"""From records to groups: mean and std over seeds, and the paper's values beside them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from fadeout._checks import extra
from fadeout.experiments.report.formatting import joined
from fadeout.experiments.report.groups import METRICS, Estimate, Group, anchor
from fadeout.experiments.report.records import Record, Section
from fadeout.experiments.report.styles import METHODS

with extra("experiments"):
    import pandas as pd

FIELDS = ("data", "network", "width", "structure", "method", "sparsity", "a_min", "a_max")
"""What a group and a published value are compared by."""

_WITHOUT_STRENGTHS = ("dense", "one_shot", "han", "liu", "rewinding", "gmp", "auto")
"""Methods that have no ``a_min`` and ``a_max``, whatever their runs say."""


def group_runs(section: Section) -> list[Group]:
    """The groups of a section's runs, and of the paper's values that no run has, in the order of a table."""
    ours = list(_estimates(section)) if section.records else []
    return sorted(_beside_the_paper(ours, section.published), key=_order)


def _estimates(section: Section) -> Iterator[Group]:
    records = sorted(section.records, key=_seed)
    runs = [{k: v for k, v in record["run"].items() if k != "seed"} for record in records]
    frame = pd.DataFrame([_metrics(record) for record in records], columns=list(METRICS), dtype=float)
    alike = frame.groupby(pd.Series([repr(sorted(run.items())) for run in runs]), sort=False)
    statistics = alike.agg(["mean", "std", "count"]).replace(math.inf, math.nan)
    notes = _notes(runs)
    for key, members in alike.groups.items():
        first = members[0]
        known = [(metric, *statistics.loc[key, metric]) for metric in METRICS]
        yield Group(
            *_identity(runs[first]),
            note=notes[first],
            anchor=anchor(section.name, records[first]["hash"]),
            records=tuple(records[i] for i in members),
            estimates={
                metric: Estimate(mean, std if seeds > 1 else None, int(seeds))
                for metric, mean, std, seeds in known
                if seeds
            },
        )


def _seed(record: Record) -> tuple[float, str]:
    seed = record["run"].get("seed")
    return (seed if isinstance(seed, (int, float)) else -1, record["hash"])


def _metrics(record: Record) -> dict[str, float | None]:
    """What a run that is done has come to. What is not finite is infinite here: nan is what is not known."""
    if record["status"] == "failed":
        return {}
    run, before, seconds = record["run"], record.get("before"), record.get("seconds")
    epochs = (run.get("epochs") or 0) * (run.get("epochs_scale") or 1.0)
    if run.get("steps") is not None:
        epochs = 0  # an epoch that was cut says nothing of a whole one
    values = {
        "seconds": seconds / epochs if epochs and seconds is not None else None,
        "after": record["after"],
        "change": None if before is None else record.get("removed", record["after"]) - before,
        "before": before,
        "top5": record.get("top5"),
    }
    for part in ("operations", "parameters"):
        total, left = record.get(part), record.get(f"{part}_left")
        values[part] = None if not total or left is None else 100 * left / total
    return {k: math.inf if v is not None and not math.isfinite(v) else v for k, v in values.items()}


def _identity(run: Record) -> tuple[Any, ...]:
    """The first fields of a run's group."""
    method = str(run.get("method"))
    strengths = (None, None) if method in _WITHOUT_STRENGTHS else (run.get("a_min"), run.get("a_max"))
    sparsity = 0.0 if method == "dense" else run.get("sparsity") or 0.0
    setup = (run.get(name) for name in ("data", "model", "width", "structure"))
    return (*setup, method, sparsity, *strengths, run.get("epochs_scale") or 1.0, run.get("steps"))


def _notes(runs: list[Record]) -> list[str]:
    """For each run, the settings that tell it apart from another that looks the same in a table.

    They are named for all runs of a method, so that a curve keeps one name along its points.
    """
    settings = pd.DataFrame([{k: repr(v) for k, v in run.items()} for run in runs]).fillna("None")
    methods, alike = [str(run.get("method")) for run in runs], [repr(_identity(run)) for run in runs]
    differ = settings.groupby([methods, alike]).nunique().gt(1).groupby(level=0).any()
    telling = {
        method: sorted(str(name) for name, differs in row.items() if differs)
        for method, row in differ.iterrows()
    }
    return [
        joined(
            *(f"{k} {_plain(run.get(k))}" for k in telling.get(method, []) if k != "validation"),
            "tested on held-out training data" if run.get("validation") else "",
        )
        for run, method in zip(runs, methods, strict=True)
    ]


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _order(group: Group) -> tuple[Any, ...]:
    listed = list(METHODS).index(group.method) if group.method in METHODS else len(METHODS)
    names = ((name is not None, name) for name in (group.data, group.network, group.structure))
    strengths = (-1.0 if a is None else a for a in group.strengths)
    method = (listed, group.method, *strengths, -group.scale, group.steps or 0, group.note)
    return (*names, group.width or 0, group.sparsity, *method)


def _beside_the_paper(ours: list[Group], published: Sequence[Any]) -> list[Group]:
    """Our groups with the paper's values for them, and groups of the values that none of ours has."""
    result, used = [], set()
    for group in ours:
        best: dict[str, tuple[float, float | None]] = {}
        for i, value in enumerate(published):
            fit = _fit(group, value, FIELDS)
            if fit:
                used.add(i)
            if fit > best.get(value.metric, (0, None))[0]:
                best[value.metric] = fit, value.value
        result.append(replace(group, published={metric: value for metric, (_, value) in best.items()}))
    alone: dict[tuple[Any, ...], dict[str, float | None]] = {}
    for i, value in enumerate(published):
        if i not in used:
            said = [None if x == "none" else x for x in (getattr(value, name) for name in FIELDS)]
            setup = next((g.setup for g in ours if _fit(g, value, FIELDS[:4])), said[:4])
            key = (*setup, value.method, value.sparsity or 0.0, *said[6:])
            alone.setdefault(key, {}).setdefault(value.metric, value.value)
    return result + [Group(*key, published=values) for key, values in alone.items()]


def _fit(group: Group, value: Any, names: Sequence[str]) -> float:
    """1 and how many fields of a published value say that it is this group's; 0 if one says that it is not.

    A field that is None says nothing. A table is more exact than the figure that was drawn from it.
    """
    pairs = [(getattr(value, name), getattr(group, name)) for name in names]
    said = [(theirs, ours) for theirs, ours in pairs if theirs not in (None, "none")]
    if not all(_equal(theirs, ours) for theirs, ours in said):
        return 0
    return 1 + len(said) + 0.5 * value.source.startswith("Table")


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-12)
    return one == other
