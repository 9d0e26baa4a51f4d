"""Which runs make a group, and what to call it."""

import re
from typing import Any

from fadeout.experiments.report.groups import METHODS, NO_STRENGTH, Group, Place, seed_of
from fadeout.experiments.report.published import beside_the_paper
from fadeout.experiments.report.records import Record, Section


def groups(section: Section) -> list[Group]:
    """The groups of a section's records, and the paper's values that no run has, in the order of a table."""
    alike: dict[tuple[Any, ...], list[Record]] = {}
    for record in sorted(section.records, key=seed_of):
        key = sorted((name, repr(value)) for name, value in record["run"].items() if name != "seed")
        alike.setdefault(tuple(key), []).append(record)
    notes = _notes([records[0]["run"] for records in alike.values()])
    ours = [_group(section, records, note) for records, note in zip(alike.values(), notes, strict=True)]
    return sorted(beside_the_paper(ours, section.published), key=_order)


def _group(section: Section, records: list[Record], note: str) -> Group:
    run = records[0]["run"]
    return Group(
        *_identity(run),
        scale=run.get("epochs_scale") or 1.0,
        steps=run.get("steps"),
        note=note,
        anchor=anchor(section.name, records[0]["hash"]),
        done=tuple(record for record in records if record["status"] == "done"),
        failed=tuple(record for record in records if record["status"] == "failed"),
    )


def _identity(run: Record) -> tuple[Place, str, float, float | None, float | None]:
    place = Place(run.get("data"), run.get("model"), run.get("width"), run.get("structure"))
    method = str(run.get("method"))
    strong = method not in NO_STRENGTH
    a_min, a_max = (run.get(name) if strong else None for name in ("a_min", "a_max"))
    sparsity = 0.0 if method == "dense" else run.get("sparsity") or 0.0
    return place, method, sparsity, a_min, a_max


def _notes(runs: list[Record]) -> list[str]:
    """For each run, the settings that tell it apart from another that looks the same in a table."""
    looks: dict[Any, list[Record]] = {}
    for run in runs:
        looks.setdefault((_identity(run), run.get("epochs_scale"), run.get("steps")), []).append(run)
    telling: dict[str, set[str]] = {}  # for each method, so that a curve keeps one name along its points
    for same in looks.values():
        names = {name for run in same for name in run if name != "seed"}
        telling.setdefault(str(same[0].get("method")), set()).update(
            name for name in names if len({repr(run.get(name)) for run in same}) > 1
        )
    return [_note(run, telling[str(run.get("method"))]) for run in runs]


def _note(run: Record, telling: set[str]) -> str:
    parts = [f"{name} {_plain(run.get(name))}" for name in sorted(telling - {"validation"})]
    held_out = ["tested on held-out training data"] if run.get("validation") else []
    return ", ".join(parts + held_out)


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def anchor(section: str, name: str) -> str:
    """An identifier inside the page.

    >>> anchor("lenet 5", "3f2a9c")
    'lenet-5-3f2a9c'
    """
    return re.sub(r"[^\w.-]", "-", f"{section}-{name}")


def _order(group: Group) -> tuple[Any, ...]:
    place = tuple(
        (value is not None, value) for value in (group.place.data, group.place.network, group.place.structure)
    )
    method = list(METHODS).index(group.method) if group.method in METHODS else len(METHODS)
    strengths = tuple(-1.0 if a is None else a for a in group.strengths)
    width = group.place.width or 0
    return (
        place,
        width,
        group.sparsity,
        method,
        group.method,
        strengths,
        -group.scale,
        group.steps or 0,
        group.note,
    )
