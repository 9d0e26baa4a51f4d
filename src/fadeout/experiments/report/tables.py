"""The tables of an experiment, for all formats: columns that say something, and cells that can be sorted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from fadeout.experiments.report.formatting import number, percent, printed_name, signed, strength
from fadeout.experiments.report.groups import METRICS, Group


class Cell(NamedTuple):
    """What is shown, what it is sorted by, and how it is marked: ``fell``, ``muted``, ``ours`` or not."""

    text: str = ""
    value: float | str | None = None
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """Columns, and a row of cells for each group; the first cell is the method's."""

    columns: list[str]
    rows: list[list[Cell]]


def table(groups: Sequence[Group]) -> Table:
    """All groups, a row for each; columns in which nothing stands, or always the same, are left out."""
    columns = {title: [cell(group) for group in groups] for title, cell in _columns(groups).items()}
    texts = {title: {cell.text for cell in cells} for title, cells in columns.items()}
    for title in columns.copy():
        constant = title in ("network", "data", "structure", "settings") and len(texts[title]) == 1
        if constant or not any(texts[title]):
            del columns[title]
    left = METRICS["parameters"]
    if f"{left}, paper" not in columns and all(map(_as_asked, groups)):
        columns.pop(left, None)  # the column of targets says it already
    return Table(list(columns), [list(row) for row in zip(*columns.values(), strict=True)])


def _columns(groups: Sequence[Group]) -> dict[str, Callable[[Group], Cell]]:
    published = dict.fromkeys(metric for group in groups for metric in group.published)
    # Top-5 of ten classes, the operations of single weights and seconds say little, unless the paper has them
    hidden = {"top5", "operations", "seconds"} - published.keys()
    if any(group.data == "imagenet" for group in groups):
        hidden -= {"top5"}
    if any(group.structure == "channels" for group in groups):
        hidden -= {"operations"}
    columns: dict[str, Callable[[Group], Cell]] = {
        "method": lambda group: _text(group.label),
        "network": lambda group: _text(group.network_name),
        "data": lambda group: _text(printed_name(group.data)),
        "structure": lambda group: _text(group.structure or ""),
        "settings": lambda group: _text(group.note),
        "removed": lambda group: Cell(percent(group.sparsity), group.sparsity),
        "a_min": lambda group: Cell(strength(group.a_min), group.a_min),
        "a_max": lambda group: Cell(strength(group.a_max), group.a_max),
        "seeds": _seeds,
    }
    for metric, title in METRICS.items():
        if metric not in hidden:
            columns[title] = partial(_ours, metric=metric)
            columns[f"{title}, paper"] = partial(_paper, metric=metric)
            columns[f"{title}, difference"] = partial(_difference, metric=metric)
    others = [metric for metric in published if metric not in METRICS]
    return columns | {f"{m.replace('_', ' ')}, paper": partial(_paper, metric=m) for m in others}


def _as_asked(group: Group) -> bool:
    """Whether exactly the target is gone."""
    pairs = [(record.get("parameters"), record.get("parameters_left")) for record in group.done]
    return all(
        total is None or left is None or abs(left - (1 - group.sparsity) * total) <= 1
        for total, left in pairs
    )


def _text(text: str) -> Cell:
    return Cell(text, text or None)


def _seeds(group: Group) -> Cell:
    done, failed = len(group.done), len(group.failed)
    return Cell(f"{done}, {failed} failed", done, "fell") if failed else Cell(str(done), done)


def _ours(group: Group, metric: str) -> Cell:
    estimate = group.estimates.get(metric)
    if estimate is None:
        return Cell()
    if metric in ("operations", "parameters"):  # what a target gives hardly differs between seeds
        return Cell(f"{estimate.mean:.3g}", estimate.mean)
    fell = metric == "change" and estimate.mean < -1
    return Cell(str(estimate), estimate.mean, "fell" if fell else "ours" if metric == "after" else "")


def _paper(group: Group, metric: str) -> Cell:
    if metric not in group.published:
        return Cell()
    value = group.published[metric]
    return Cell("none" if value is None else number(value), value)


def _difference(group: Group, metric: str) -> Cell:
    value = group.difference(metric)
    return Cell(signed(value), value, "muted" if group.mark else "")
