"""The report as Markdown, for a README."""

import re
from collections.abc import Sequence
from dataclasses import replace

from fadeout.experiments.report.formatting import joined, last_line, number, strength
from fadeout.experiments.report.groups import Cells, Group, axes_of, grids, marks
from fadeout.experiments.report.records import Section
from fadeout.experiments.report.statistics import group_runs
from fadeout.experiments.report.tables import table


def markdown(sections: Sequence[Section]) -> str:
    """The report as Markdown: a heading and a table for each experiment, for a grid also its matrices.

    Args:
        sections: the experiments, in the order in which they are shown.
    """
    return "\n\n".join(part for section in sections for part in _section(section)) + "\n"


def _section(section: Section) -> list[str]:
    groups = group_runs(section)
    parts = [f"## {_text(section.title)}"]
    if mark := marks(groups):
        parts.append(f"**Shortened runs: {mark}**, not comparable with the paper's.")
    if len({group.setup for group in groups}) == 1 and groups[0].where:
        parts.append(f"{_text(groups[0].where)}.")
    listed = groups
    if section.kind == "grid":
        parts += [part for cells in grids(groups) for part in _matrices(cells)]
        listed = [group for group in groups if not any(group.strengths)]
    if listed:
        whole = table(listed)
        rows = [[_text(cell.text) for cell in row] for row in whole.rows]
        for group, row in zip(listed, rows, strict=True):
            row[0] += _mark(group)
        parts.append(_grid([_text(title) for title in whole.columns], rows))
    failed = [
        f"- {_text(group.title)}, seed {_text(str(record['run'].get('seed')))}: "
        f"{_text(last_line(record.get('error')))}"
        for group in groups
        for record in group.failed
    ]
    return parts + (["Failed runs:", "\n".join(failed)] if failed else [])


def _mark(group: Group) -> str:
    return f" (**{group.mark}**)" if group.mark else ""


def _matrices(cells: Cells) -> list[str]:
    """Accuracy after removal and its change over a_min, downwards, and a_max."""
    lows, highs = axes_of(cells)
    first = next((group for group in cells.values() if group.records), next(iter(cells.values())))
    title = _text(joined(first.where, replace(first, a_min=None, a_max=None).title))
    parts = []
    for metric, name in (("after", "after removal"), ("change", "change")):
        published = any(metric in group.published for group in cells.values())
        if published or any(metric in group.estimates for group in cells.values()):
            paper = "; in brackets the paper's" if published else ""
            rows = [[strength(a), *(_cell(cells.get((a, b)), metric) for b in highs)] for a in lows]
            parts.append(f"{title}: {name}{paper}{_mark(first)}")
            parts.append(_grid(["a_min \\ a_max", *map(strength, highs)], rows))
    return parts


def _cell(group: Group | None, metric: str) -> str:
    if group is None:
        return ""
    ours = str(group.estimates.get(metric, "failed" if group.failed else ""))
    theirs = f"({number(group.published[metric]) or 'none'})" if metric in group.published else ""
    return joined(ours, theirs, by=" ")


def _grid(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (columns, *rows)]
    return "\n".join([lines[0], "|---" + "|---:" * (len(columns) - 1) + "|", *lines[1:]])


def _text(text: str) -> str:
    """Text that means nothing to Markdown.

    >>> _text("a|b <i>*c*</i>")
    'a\\\\|b &lt;i&gt;\\\\*c\\\\*&lt;/i&gt;'
    """
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", text)
