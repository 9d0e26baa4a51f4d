"""Grids over the two ends of the paper's a."""

import math
from collections.abc import Sequence

from fadeout.experiments.report.groups import Group

Cells = dict[tuple[float | None, float | None], Group]
"""Groups by ``(a_min, a_max)``."""


def grids(groups: Sequence[Group]) -> list[Cells]:
    """The cells of each grid, one for each place, method, target and setting; with the paper's."""
    likes: dict[object, list[Group]] = {}
    for group in groups:
        if any(a is not None for a in group.strengths):
            likes.setdefault((group.place, group.method, group.sparsity), []).append(group)
    found = []
    for same in likes.values():
        kinds = list(dict.fromkeys((group.scale, group.steps, group.note) for group in same if group.records))
        for kind in kinds or [None]:
            found.append(
                {g.strengths: g for g in same if not g.records}
                | {g.strengths: g for g in same if g.records and (g.scale, g.steps, g.note) == kind}
            )
    return found


def axes_of(cells: Cells) -> tuple[list[float | None], list[float | None]]:
    """The values of a_min and of a_max that occur, in order."""
    ends = zip(*cells, strict=True)
    lows, highs = (sorted(set(end), key=lambda a: -math.inf if a is None else a) for end in ends)
    return lows, highs
