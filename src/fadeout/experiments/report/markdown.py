"""The report as Markdown, for a README."""

import re
from collections.abc import Sequence
from dataclasses import replace

from fadeout.experiments.report import words
from fadeout.experiments.report.grids import Cells, axes_of, grids
from fadeout.experiments.report.grouping import groups
from fadeout.experiments.report.groups import Group
from fadeout.experiments.report.records import Section
from fadeout.experiments.report.tables import table


def markdown(sections: Sequence[Section]) -> str:
    """The report as Markdown: a heading and a table for each experiment, for a grid also its matrices.

    Args:
        sections: the experiments, in the order in which they are shown.
    """
    return "\n\n".join(_section(section, groups(section)) for section in sections) + "\n"


def _section(section: Section, here: list[Group]) -> str:
    parts = [f"## {_text(section.title)}"]
    mark = words.badges(here)
    if mark:
        parts.append(f"**Shortened runs: {mark}**, not comparable with the paper's.")
    places = {group.place for group in here}
    if len(places) == 1 and (place := words.where(here[0].place)):
        parts.append(f"{_text(place)}.")
    if section.kind == "grid":
        parts += [part for cells in grids(here) for part in _matrices(cells)]
        here = [group for group in here if not any(group.strengths)]
    if here:
        parts.append(_table(here))
    parts += _failed(groups(section))
    return "\n\n".join(parts)


def _table(here: Sequence[Group]) -> str:
    whole = table(here)
    rows = []
    for group, cells in zip(whole.groups, whole.rows, strict=True):
        texts = [_text(cell.text) for cell in cells]
        if words.mark(group):
            texts[0] += f" (**{words.mark(group)}**)"
        rows.append(texts)
    return _grid([_text(title) for title in whole.columns], rows)


def _matrices(cells: Cells) -> list[str]:
    """Accuracy after removal and its change over a_min, downwards, and a_max."""
    lows, highs = axes_of(cells)
    first = next((group for group in cells.values() if group.records), next(iter(cells.values())))
    title = ", ".join(part for part in (words.where(first.place), words.what(_bare(first))) if part)
    mark = f" (**{words.mark(first)}**)" if words.mark(first) else ""
    parts = []
    for metric, name in (("after", "after removal"), ("change", "change")):
        known = [g for g in cells.values() if g.estimate(metric) or metric in g.published]
        if not known:
            continue
        rows = [
            [words.strength(low), *(_matrix_cell(cells.get((low, high)), metric) for high in highs)]
            for low in lows
        ]
        paper = "; in brackets the paper's" if any(metric in g.published for g in known) else ""
        parts.append(f"{_text(title)}: {name}{paper}{mark}")
        parts.append(_grid(["a_min \\ a_max", *map(words.strength, highs)], rows))
    return parts


def _bare(group: Group) -> Group:
    return replace(group, a_min=None, a_max=None)


def _matrix_cell(group: Group | None, metric: str) -> str:
    if group is None:
        return ""
    ours = words.spread(group.estimate(metric)) or ("failed" if group.failed else "")
    theirs = f"({words.number(group.published[metric]) or 'none'})" if metric in group.published else ""
    return " ".join(part for part in (ours, theirs) if part)


def _failed(here: Sequence[Group]) -> list[str]:
    rows = [
        f"- {_text(words.what(group))}, seed {_text(str(record['run'].get('seed')))}: "
        f"{_text(words.last_line(record.get('error')))}"
        for group in here
        for record in group.failed
    ]
    return ["Failed runs:", "\n".join(rows)] if rows else []


def _grid(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    words_first = "|---" + "|---:" * (len(columns) - 1) + "|"
    lines = ["| " + " | ".join(columns) + " |", words_first]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _text(text: str) -> str:
    """Text that means nothing to Markdown.

    >>> _text("a|b <i>*c*</i>")
    'a\\\\|b &lt;i&gt;\\\\*c\\\\*&lt;/i&gt;'
    """
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", text)
