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
    # Top-5 of ten classes, the operations of single weights and seconds say little, unless the paper has them
    hidden = {"top5", "operations", "seconds"} - published.keys()
    if any(group.data == "imagenet" for group in groups):
        hidden -= {"top5"}
    if any(group.structure == "channels" for group in groups):
        hidden -= {"operations"}
    if "parameters" not in published and all(map(_as_asked, groups)):
        hidden |= {"parameters"}  # the column of targets says it already
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
    for metric, title in METRICS.items():
        if metric not in hidden:
            columns[title] = [_ours(group, metric) for group in groups]
            columns[f"{title}, paper"] = [_paper(group, metric) for group in groups]
            columns[f"{title}, difference"] = [_difference(group, metric) for group in groups]
    for metric in [metric for metric in published if metric not in METRICS]:
        columns[f"{metric.replace('_', ' ')}, paper"] = [_paper(group, metric) for group in groups]
    return {title: cells for title, cells in columns.items() if any(cell.text for cell in cells)}


def _as_asked(group: Group) -> bool:
    """Whether exactly the target is gone."""
    pairs = [(record.get("parameters"), record.get("parameters_left")) for record in group.done]
    return all(
        total is None or left is None or abs(left - (1 - group.sparsity) * total) <= 1
        for total, left in pairs
    )


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
