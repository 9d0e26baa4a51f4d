"""The table of an experiment, for all formats: columns that say something, and cells that can be sorted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from fadeout.experiments.report import words
from fadeout.experiments.report.groups import METRICS, Group


@dataclass(frozen=True)
class Cell:
    """What is shown, what it is sorted by, and how it is marked: ``fell``, ``muted``, ``ours`` or not."""

    text: str = ""
    value: float | str | None = None
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """Columns, and a row of cells for each group; the first cell is the method's."""

    columns: list[str]
    groups: list[Group]
    rows: list[list[Cell]]


def table(groups: Sequence[Group]) -> Table:
    """All groups, a row for each; columns in which nothing stands, or always the same, are left out."""
    columns: dict[str, list[Cell]] = {}
    for title, cell, constant in _columns(groups):
        cells = [cell(group) for group in groups]
        if any(c.text for c in cells) and not (constant and len({c.text for c in cells}) == 1):
            columns[title] = cells
    if all(_as_asked(group) for group in groups) and f"{_LEFT}, paper" not in columns:
        columns.pop(_LEFT, None)  # the column of targets says it already
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    return Table(list(columns), list(groups), rows)


def _columns(groups: Sequence[Group]) -> list[tuple[str, Callable[[Group], Cell], bool]]:
    """Title, cell, and whether it is left out where it is the same in all rows."""
    published = dict.fromkeys(metric for group in groups for metric in group.published)
    # Top-5 of ten classes, the operations of single weights and seconds say little, unless the paper has them
    places = {group.place for group in groups}
    shown = {
        "top5": "top5" in published or any(place.data == "imagenet" for place in places),
        "operations": "operations" in published or any(place.structure == "channels" for place in places),
        "seconds": "seconds" in published,
    }
    return [
        ("method", lambda group: _text(words.method(group.method)), False),
        ("network", lambda group: _text(words.network(group.place)), True),
        ("data", lambda group: _text(words.data(group.place)), True),
        ("structure", lambda group: _text(group.place.structure or ""), True),
        ("settings", lambda group: _text(group.note), True),
        ("removed", lambda group: Cell(words.percent(group.sparsity), group.sparsity), False),
        ("a_min", lambda group: Cell(words.strength(group.a_min), group.a_min), False),
        ("a_max", lambda group: Cell(words.strength(group.a_max), group.a_max), False),
        ("seeds", _seeds, False),
        *(_compared("seconds an epoch", "seconds") if shown["seconds"] else []),
        *_compared("after"),
        *_compared("change"),
        ("before", lambda group: _ours(group, "before"), False),
        *(_compared("top-5", "top5") if shown["top5"] else []),
        *(_compared("operations left, %", "operations") if shown["operations"] else []),
        *_compared(_LEFT, "parameters"),
        *(
            (f"{metric.replace('_', ' ')}, paper", partial(_paper, metric=metric), False)
            for metric in published
            if metric not in METRICS
        ),
    ]


_LEFT = "weights left, %"


def _as_asked(group: Group) -> bool:
    """Whether exactly the target is gone."""
    pairs = [(record.get("parameters"), record.get("parameters_left")) for record in group.done]
    return all(
        total is None or left is None or abs(left - (1 - group.sparsity) * total) <= 1
        for total, left in pairs
    )


def _compared(title: str, metric: str = "") -> list[tuple[str, Callable[[Group], Cell], bool]]:
    metric = metric or title
    return [
        (title, lambda group: _ours(group, metric), False),
        (f"{title}, paper", lambda group: _paper(group, metric), False),
        (f"{title}, difference", lambda group: _difference(group, metric), False),
    ]


def _text(text: str) -> Cell:
    return Cell(text, text or None)


def _seeds(group: Group) -> Cell:
    done, failed = len(group.done), len(group.failed)
    return Cell(f"{done}, {failed} failed" if failed else str(done), done, "fell" if failed else "")


def _ours(group: Group, metric: str) -> Cell:
    estimate = group.estimate(metric)
    if estimate is None:
        return Cell()
    if metric in ("operations", "parameters"):  # what a target gives hardly differs between seeds
        return Cell(f"{estimate.mean:.3g}", estimate.mean)
    fell = metric == "change" and estimate.mean < -1
    return Cell(
        words.spread(estimate), estimate.mean, "fell" if fell else "ours" if metric == "after" else ""
    )


def _paper(group: Group, metric: str) -> Cell:
    if metric not in group.published:
        return Cell()
    value = group.published[metric]
    return Cell("none" if value is None else words.number(value), value)


def _difference(group: Group, metric: str) -> Cell:
    value = group.difference(metric)
    return Cell(words.signed(value), value, "muted" if words.mark(group) else "")
