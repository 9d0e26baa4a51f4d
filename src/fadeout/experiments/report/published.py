"""The paper's values beside ours."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from fadeout.experiments.report.groups import Group, Place


def beside_the_paper(ours: Sequence[Group], published: Sequence[Any]) -> list[Group]:
    """Our groups with the paper's values for them, and a group for each value that none of ours has.

    A field of a published value that is None says nothing; all others must agree.

    Args:
        ours: groups of runs.
        published: values as ``fadeout.experiments.paper`` has them.
    """
    used: set[int] = set()
    with_paper = [_with_published(group, published, used) for group in ours]
    left = [value for number, value in enumerate(published) if number not in used]
    return with_paper + _only_published(left, ours)


def _with_published(group: Group, published: Sequence[Any], used: set[int]) -> Group:
    best: dict[str, tuple[tuple[int, bool], float | None]] = {}
    for number, value in enumerate(published):
        exact = _fit(group, value)
        if exact is None:
            continue
        used.add(number)
        if value.metric not in best or best[value.metric][0] < exact:
            best[value.metric] = exact, value.value
    return replace(group, published={metric: value for metric, (_, value) in best.items()})


def _fit(group: Group, value: Any) -> tuple[int, bool] | None:
    """How many fields of a published value say that it is this group's; None if one says that it is not.

    Where as many fields of two say so, a table is more exact than the figure that was drawn from it.
    """
    if value.method != group.method:
        return None
    pairs = [
        *((getattr(value, name), getattr(group.place, name)) for name in Place.__dataclass_fields__),
        (value.sparsity, group.sparsity),
        (value.a_min, group.a_min),
        (value.a_max, group.a_max),
    ]
    said = [(theirs, ours) for theirs, ours in pairs if theirs not in (None, "none")]
    if not all(_equal(theirs, ours) for theirs, ours in said):
        return None
    return len(said), value.source.startswith("Table")


def _equal(one: Any, other: Any) -> bool:
    numbers = all(isinstance(x, (int, float)) for x in (one, other))
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-12) if numbers else one == other


def _only_published(values: Iterable[Any], ours: Sequence[Group]) -> list[Group]:
    places = list(dict.fromkeys(group.place for group in ours))
    rows: dict[tuple[Any, ...], dict[str, float | None]] = {}
    for value in values:
        said = (getattr(value, name) for name in Place.__dataclass_fields__)
        named = Place(*(None if one == "none" else one for one in said))
        place = next((place for place in places if _inside(named, place)), named)
        key = (place, value.method, value.sparsity or 0.0, value.a_min, value.a_max)
        rows.setdefault(key, {}).setdefault(value.metric, value.value)
    return [Group(*key, published=published) for key, published in rows.items()]


def _inside(named: Place, place: Place) -> bool:
    names = Place.__dataclass_fields__
    return all(getattr(named, name) in (None, getattr(place, name)) for name in names)
