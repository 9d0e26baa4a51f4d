"""The table of an experiment, for all formats: columns that say something, and cells that can be sorted."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from fadeout.experiments.report.formatting import count, number, percent, printed_name, strength
from fadeout.experiments.report.groups import METRICS, Group
from fadeout.experiments.report.standings import Standing


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
    metrics = [m for m in METRICS | published if m in published or telling.get(m, True)]
    rows = [_row(group, metrics) for group in groups]
    columns = {title: [row[title] for row in rows] for row in rows[:1] for title in row}
    texts = {title: {cell.text for cell in cells} for title, cells in columns.items()}
    constant = {
        title for title in ("network", "data", "structure", "settings") if len(texts.get(title, ())) == 1
    }
    return {title: columns[title] for title in columns if any(texts[title]) and title not in constant}


def standings_table(standings: Sequence[Standing]) -> dict[str, list[Cell]]:
    """The columns by their titles, with a cell for each method, the best first."""
    columns = {
        "method": [Cell(one.name, one.name) for one in standings],
        "epochs": [
            Cell(f"{one.budget:.3g} times" if one.budget != 1 else "", one.budget) for one in standings
        ],
        "mean rank": [Cell(number(one.rank), one.rank, "ours") for one in standings],
        "mean difference": [_mean_difference(one) for one in standings],
    }
    for verdict in ("ahead", "level", "behind", "one seed"):
        counts = [one.count(verdict) if one.margins else None for one in standings]
        columns[verdict] = [Cell(str(n) if n else "", n) for n in counts]
    return {title: cells for title, cells in columns.items() if any(cell.text for cell in cells)}


def _mean_difference(standing: Standing) -> Cell:
    if not standing.margins:
        return Cell()
    mean = fmean(margin.mean for margin in standing.margins)
    return Cell(f"{number(mean, signed=True)} at {count(len(standing.margins), 'target')}", mean)


def _as_asked(group: Group) -> bool:
    """Whether exactly the target is gone."""
    known = [r for r in group.done if None not in (r.get("parameters"), r.get("parameters_left"))]
    return all(abs(r["parameters_left"] - (1 - group.sparsity) * r["parameters"]) <= 1 for r in known)


def _row(group: Group, metrics: Sequence[str]) -> dict[str, Cell]:
    words = {
        "method": group.label,
        "network": group.network_name,
        "data": printed_name(group.data),
        "structure": group.structure or "",
        "settings": group.note,
    }
    row = {title: Cell(text, text or None) for title, text in words.items()}
    row["removed"] = Cell(percent(group.sparsity), group.sparsity)
    row["a_min"] = Cell(strength(group.a_min), group.a_min)
    row["a_max"] = Cell(strength(group.a_max), group.a_max)
    done, failed = len(group.done), len(group.failed)
    row["seeds"] = Cell(f"{done}, {failed} failed", done, "fell") if failed else Cell(str(done), done)
    for metric in metrics:
        title = METRICS.get(metric, metric.replace("_", " "))
        row[title] = _ours(group, metric)
        theirs, absent = group.published.get(metric), "none" if metric in group.published else ""
        row[f"{title}, paper"] = Cell(number(theirs) or absent, theirs)
        less = group.difference(metric)
        row[f"{title}, difference"] = Cell(number(less, signed=True), less, "muted" if group.mark else "")
        if metric == "after":
            margin = group.margin
            row["against fadeout"] = Cell() if margin is None else Cell(str(margin), margin.mean)
    return row


def _ours(group: Group, metric: str) -> Cell:
    estimate = group.estimates.get(metric)
    if estimate is None:
        return Cell()
    if metric in ("operations", "parameters"):  # what a target gives hardly differs between seeds
        return Cell(f"{estimate.mean:.3g}", estimate.mean)
    fell = metric == "change" and estimate.mean < -1
    return Cell(str(estimate), estimate.mean, "fell" if fell else "ours" if metric == "after" else "")
