"""The report as a page that needs nothing else, or as Markdown for a README; and all other templates."""

import json
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from fadeout._checks import extra
from fadeout.experiments.report import formatting
from fadeout.experiments.report.group_runs import group_runs
from fadeout.experiments.report.groups import anchor, grids, marks
from fadeout.experiments.report.records import Section
from fadeout.experiments.report.standings import find_standings
from fadeout.experiments.report.styles import METHODS, OTHER
from fadeout.experiments.report.tables import standings_table, table

with extra("experiments"):
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

_TEMPLATES = Environment(
    loader=PackageLoader("fadeout.experiments.report"),
    autoescape=select_autoescape(["html"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def markdown_text(text: Any) -> str:
    """Text that means nothing to Markdown.

    >>> markdown_text("a|b <i>*c*</i>")
    'a\\\\|b &lt;i&gt;\\\\*c\\\\*&lt;/i&gt;'
    """
    text = " ".join(str(text).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", text)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return formatting.joined(*(f"{name} {number}" for name, number in value.items()))
    return "" if value is None else str(value)


_TEMPLATES.globals |= {"looks": METHODS | {"other": OTHER}, "count": formatting.count, "table": table}
_TEMPLATES.filters |= {
    "json": partial(json.dumps, indent=2, ensure_ascii=False),
    "last_line": formatting.last_line,
    "md": markdown_text,
    "number": formatting.number,
    "percent": formatting.percent,
    "shown": _shown,
    "strength": formatting.strength,
    "thousands": lambda value: "" if value in (None, "") else f"{value:,}",
}


def render(template: str, **values: Any) -> str:
    """Fill a template of the folder ``templates``; in ``.html``, everything but ``Markup`` is escaped."""
    return _TEMPLATES.get_template(template).render(**values)


def page(sections: Sequence[Section]) -> str:
    """The report as HTML, with style, figures and script inside; the same sections give the same bytes."""
    from fadeout.experiments.report.figures import figures  # here: Markdown needs no matplotlib

    return render("experiments.html", sections=[_shown_of(section) for section in sections], figures=figures)


def markdown(sections: Sequence[Section]) -> str:
    """The report as Markdown: a heading and a table for each experiment, for a grid also its matrices."""
    text = render("experiments.md", sections=[_shown_of(section) for section in sections])
    return text.strip("\n") + "\n"


def _shown_of(section: Section) -> dict[str, Any]:
    """What the templates show of an experiment."""
    groups = group_runs(section)
    return {
        "id": anchor("experiment", section.name),
        "title": section.title,
        "kind": section.kind,
        "runs": len(section.records),
        "marks": marks(groups),
        "groups": groups,
        "grids": grids(groups) if section.kind == "grid" else [],
        "listed": [group for group in groups if section.kind != "grid" or not any(group.strengths)],
        "standings": {w: standings_table(found) for w, found in find_standings(groups).items()},
        "several": len({group.setup for group in groups}) > 1,
        "decided": any("decided" in group.estimates for group in groups),
        "failed": sum(len(group.failed) for group in groups),
    }
