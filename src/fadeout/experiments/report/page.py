"""The report as one page that needs nothing else: style, figures and the little script are inside."""

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template

from fadeout.experiments.drawing import style_sheet
from fadeout.experiments.report import styles, words
from fadeout.experiments.report.blocks import configurations, failures
from fadeout.experiments.report.curves import curves
from fadeout.experiments.report.dots import dots
from fadeout.experiments.report.grouping import anchor, groups
from fadeout.experiments.report.groups import Group
from fadeout.experiments.report.heat import heat_maps
from fadeout.experiments.report.plots import Plot
from fadeout.experiments.report.records import Section
from fadeout.experiments.report.tables import Cell, table

_PLOTS = {"curve": curves, "grid": heat_maps, "table": dots}
_WORDS = ("method", "network", "data", "structure", "settings")


def page(sections: Sequence[Section]) -> str:
    """The report as HTML; the same sections give the same bytes.

    Args:
        sections: the experiments, in the order in which they are shown.
    """
    grouped = [(section, groups(section)) for section in sections]
    short = any(words.badges(here) for _, here in grouped)
    runs = sum(len(section.records) for section in sections)
    return Template(_file("page.html")).substitute(
        style=style_sheet(),
        colours=styles.rules(),
        script=_file("page.js"),
        lead=f"{_count(len(sections), 'experiment')}, {_count(runs, 'run')}, beside the paper's values.",
        contents="".join(_entry(section, here) for section, here in grouped),
        shortened=f"<li>{_badge('a tenth of the length')} marks runs that trained for less than the paper's "
        "epochs: their accuracies are not comparable with the paper's, and the difference is grey.</li>"
        if short
        else "",
        sections="\n".join(_section(section, here) for section, here in grouped),
    )


def _file(name: str) -> str:
    return files("fadeout.experiments.report").joinpath(name).read_text(encoding="utf-8")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _badge(text: str) -> str:
    return f' <span class="badge">{escape(text)}</span>' if text else ""


def _entry(section: Section, here: Sequence[Group]) -> str:
    """The link to a section, at the top."""
    failed = sum(len(group.failed) for group in here)
    counts = _count(len(section.records), "run") + (f", {failed} failed" if failed else "")
    return (
        f'<li><a class="card" href="#{escape(anchor("experiment", section.name))}">'
        f"<b>{escape(section.title)}</b><span>{counts}</span>{_badge(words.badges(here))}</a></li>"
    )


def _section(section: Section, here: list[Group]) -> str:
    name = anchor("experiment", section.name)
    parts = [
        f'<section id="{escape(name)}">',
        f"<h2>{escape(section.title)}{_badge(words.badges(here))}</h2>",
        f'<div class="figures">{"".join(map(_figure, _PLOTS[section.kind](here, name)))}</div>',
        _table(here),
        failures(here),
        configurations(here),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _figure(plot: Plot) -> str:
    svg = plot.svg.replace("<svg ", f'<svg role="group" aria-label="{escape(plot.title)}" ', 1)
    return f'<figure class="card"><h3>{escape(plot.title)}{_badge(plot.badge)}</h3>{svg}</figure>'


def _table(here: Sequence[Group]) -> str:
    whole = table(here)
    kinds = [' class="word"' if title in _WORDS else "" for title in whole.columns]
    head = "".join(
        f'<th scope="col"{kind}>{escape(title)}</th>'
        for title, kind in zip(whole.columns, kinds, strict=True)
    )
    rows = [_row(group, cells, kinds) for group, cells in zip(whole.groups, whole.rows, strict=True)]
    return (
        f'<div class="card scroll" tabindex="0" role="group" aria-label="table"><table class="sortable">\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{''.join(rows)}</tbody></table></div>"
    )


def _row(group: Group, cells: Sequence[Cell], kinds: Sequence[str]) -> str:
    shown = []
    for number, (cell, kind) in enumerate(zip(cells, kinds, strict=True)):
        value = (
            ""
            if cell.value is None or cell.value != cell.value
            else f' data-value="{escape(str(cell.value))}"'
        )
        look = f' class="{cell.mark}"' if cell.mark else kind
        text = escape(cell.text)
        if number == 0:
            text = f'<a href="#{escape(group.anchor)}">{text}</a>' if group.anchor else text
            text += _badge(words.mark(group))
        shown.append(f"<td{look}{value}>{text}</td>")
    only = "" if group.records else ' class="only"'
    return f'<tr{only} style="--method: var(--{styles.role(group.method)})">{"".join(shown)}</tr>\n'
