"""The table of an experiment, for all formats: columns that say something, and cells that can be sorted."""

from collections.abc import Sequence
from typing import NamedTuple

from fadeout.experiments.report.formatting import number, percent, printed_name, strength
from fadeout.experiments.report.groups import METRICS, Group


class Cell(NamedTuple):
    """What is shown, what it is sorted by, and how it is marked: ``fell``, ``muted``, ``ours`` or not."""

    text: str = ""
    value: float | str | None = None
    mark: str = ""


def table(groups: Sequence[Group]) -> dict[str, list[Cell]]:
    """The columns by their titles, with a cell for each group; the first column is the method's.

    Columns in which nothing stands, or always the same, are left out.
    """
    published = dict.fromkeys(metric for group in groups for metric in group.published)
    telling = {  # what says little elsewhere, unless the paper has it
        "top5": any(group.data == "imagenet" for group in groups),
        "operations": any(group.structure == "channels" for group in groups),
        "parameters": not all(map(_as_asked, groups)),  # or the column of targets says it already
        "seconds": False,
    }
    words = {
        "method": [group.label for group in groups],
        "network": [group.network_name for group in groups],
        "data": [printed_name(group.data) for group in groups],
        "structure": [group.structure or "" for group in groups],
        "settings": [group.note for group in groups],
    }
    columns = {
        title: [Cell(text, text or None) for text in texts]
        for title, texts in words.items()
        if title == "method" or len(set(texts)) > 1
    }
    columns["removed"] = [Cell(percent(group.sparsity), group.sparsity) for group in groups]
    columns["a_min"] = [Cell(strength(group.a_min), group.a_min) for group in groups]
    columns["a_max"] = [Cell(strength(group.a_max), group.a_max) for group in groups]
    columns["seeds"] = [_seeds(group) for group in groups]
    for metric in METRICS | published:
        if metric in published or telling.get(metric, True):
            title = METRICS.get(metric, metric.replace("_", " "))
            columns[title] = [_ours(group, metric) for group in groups]
            columns[f"{title}, paper"] = [_paper(group, metric) for group in groups]
            columns[f"{title}, difference"] = [_difference(group, metric) for group in groups]
    return {title: cells for title, cells in columns.items() if any(cell.text for cell in cells)}


def _as_asked(group: Group) -> bool:
    """Whether exactly the target is gone."""
    known = [
        record for record in group.done if None not in map(record.get, ("parameters", "parameters_left"))
    ]
    return all(abs(r["parameters_left"] - (1 - group.sparsity) * r["parameters"]) <= 1 for r in known)


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
    return Cell(number(value, signed=True), value, "muted" if group.mark else "")
