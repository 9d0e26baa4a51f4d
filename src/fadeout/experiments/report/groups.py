"""What the report shows: groups of runs that differ in nothing but the seed, with the paper's values."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fadeout.experiments.report.formatting import joined, length, percent, printed_name, strength
from fadeout.experiments.report.records import Record
from fadeout.experiments.report.statistics import Estimate, Margin
from fadeout.experiments.report.styles import METHODS, OTHER, Look

METRICS = {
    "seconds": "seconds an epoch",
    "after": "after",
    "change": "change",
    "before": "before",
    "decided": "decided, %",
    "top5": "top-5",
    "operations": "operations left, %",
    "parameters": "weights left, %",
    "faster": "times as fast",
}
"""And their titles, in the order of a table. In percent, but seconds and times; ``change`` is what removal
did, ``decided`` how much of the training was over when 99 % of the final kept set were kept for good,
``faster`` the time of the dense network over that of what is left, where it was measured."""


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed; there are none where only the paper has a value.

    Attributes:
        scale: of the epochs: less than 1 if the runs were shortened.
        steps: at most so many in an epoch, if that was cut.
        note: what else tells it apart from others that look the same.
        settings: of its runs, all but the seed.
        anchor: the identifier of its configuration inside the page.
        estimates, published: for each metric that is known, ours and the paper's.
        margin: over fadeout under the same conditions.

    >>> group = Group("cora", "gcn", 64, "elements", "swd", 0.9, 0.1, 1e4, note="preset authors")
    >>> group.title, group.where
    ('SWD, a 0.1 to 10⁴, 90 % removed, preset authors', 'GCN, 64 maps on Cora, elements')
    """

    data: str | None
    network: str | None
    width: int | None
    structure: str | None
    method: str
    sparsity: float
    a_min: float | None = None
    a_max: float | None = None
    scale: float = 1.0
    steps: int | None = None
    note: str = ""
    settings: Record = field(default_factory=dict)
    anchor: str = ""
    records: tuple[Record, ...] = ()
    estimates: dict[str, Estimate] = field(default_factory=dict)
    published: dict[str, float | None] = field(default_factory=dict)
    margin: Margin | None = None

    @property
    def setup(self) -> tuple[Any, ...]:
        """What is pruned, and how: each has a figure of its own."""
        return self.data, self.network, self.width, self.structure

    @property
    def strengths(self) -> tuple[float | None, float | None]:
        return self.a_min, self.a_max

    @property
    def look(self) -> Look:
        return METHODS.get(self.method, OTHER)

    @property
    def label(self) -> str:
        return METHODS[self.method].label if self.method in METHODS else self.method

    @property
    def removed(self) -> str:
        return f"{percent(self.sparsity)} removed" if self.sparsity else ""

    @property
    def title(self) -> str:
        """The group in a line, without its setup."""
        strengths = f"a {strength(self.a_min)} to {strength(self.a_max)}" if any(self.strengths) else ""
        return joined(self.label, strengths, self.removed, self.note)

    @property
    def network_name(self) -> str:
        """With its width, if that is not the usual one."""
        return joined(printed_name(self.network), f"{self.width} maps" if self.width else "")

    @property
    def where(self) -> str:
        """The setup in a line."""
        return joined(joined(self.network_name, printed_name(self.data), by=" on "), self.structure or "")

    @property
    def mark(self) -> str:
        """That the runs were shortened."""
        return length(self.scale, self.steps)

    @property
    def done(self) -> list[Record]:
        return [record for record in self.records if record["status"] == "done"]

    @property
    def failed(self) -> list[Record]:
        return [record for record in self.records if record["status"] == "failed"]

    def difference(self, metric: str) -> float | None:
        """Ours less the paper's."""
        ours, theirs = self.estimates.get(metric), self.published.get(metric)
        return None if ours is None or theirs is None else ours.mean - theirs


def marks(groups: Sequence[Group]) -> str:
    """That all runs of these groups were shortened, or a part of them."""
    found = sorted({group.mark for group in groups if group.records})
    return ("in part " if found[:1] == [""] and found[1:] else "") + joined(*found, by=" or ")


def anchor(section: str, name: str) -> str:
    """An identifier inside the page.

    >>> anchor("lenet 5", "3f2a9c")
    'lenet-5-3f2a9c'
    """
    return re.sub(r"[^\w.-]", "-", f"{section}-{name}")


def alike(items: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    """The items of each key, in the order in which they come.

    >>> alike(["swd", "gmp", "soft"], key=len)
    {3: ['swd', 'gmp'], 4: ['soft']}
    """
    found: dict[Any, list[Any]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


class Grid(NamedTuple):
    """Groups by ``(a_min, a_max)``, one of them to name it by, and the values along both axes."""

    cells: dict[tuple[float | None, float | None], Group]
    first: Group
    a_mins: list[float | None]
    a_maxs: list[float | None]


def grids(groups: Sequence[Group]) -> list[Grid]:
    """The grids of strengths: one for each setup, method, target and length."""
    found = []
    strong = [group for group in groups if group.strengths != (None, None)]
    for same in alike(strong, lambda group: (group.setup, group.method, group.sparsity)).values():
        published = {group.strengths: group for group in same if not group.records}
        ours = alike([g for g in same if g.records], lambda group: (group.scale, group.steps, group.note))
        for kind in ours.values() or [[]]:
            cells = published | {group.strengths: group for group in kind}
            mins, maxs = (
                sorted(set(axis), key=lambda a: -1.0 if a is None else a) for axis in zip(*cells, strict=True)
            )
            found.append(Grid(cells, (kind or same)[0], mins, maxs))
    return found
