"""Pages that need nothing else: style, figures and the little script are inside."""

import json
from collections.abc import Sequence
from typing import Any

from fadeout._checks import extra
from fadeout.experiments.report import formatting
from fadeout.experiments.report.figures import FIGURES
from fadeout.experiments.report.groups import anchor, marks
from fadeout.experiments.report.records import Section
from fadeout.experiments.report.statistics import group_runs
from fadeout.experiments.report.styles import METHODS, OTHER
from fadeout.experiments.report.tables import table

with extra("experiments"):
    from jinja2 import Environment, PackageLoader, StrictUndefined

_TEMPLATES = Environment(
    loader=PackageLoader("fadeout.experiments.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.globals |= {"looks": METHODS | {"other": OTHER}, "count": formatting.count}


def _settings(run: dict[str, Any]) -> str:
    """All settings of a run but its seed."""
    return json.dumps({k: v for k, v in run.items() if k != "seed"}, indent=2, ensure_ascii=False)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return formatting.joined(*(f"{name} {number}" for name, number in value.items()))
    return "" if value is None else str(value)


_TEMPLATES.filters |= {
    "last_line": formatting.last_line,
    "number": lambda value, digits=2: formatting.number(None if value == "" else value, digits),
    "percent": formatting.percent,
    "settings": _settings,
    "shown": _shown,
    "thousands": lambda value: "" if value in (None, "") else f"{value:,}",
}


def render(template: str, **values: Any) -> str:
    """Fill a template of the folder ``templates``; everything but ``Markup`` is escaped."""
    return _TEMPLATES.get_template(template).render(**values)


def page(sections: Sequence[Section]) -> str:
    """The report as HTML; the same sections give the same bytes.

    Args:
        sections: the experiments, in the order in which they are shown.
    """
    return render("experiments.html", sections=[_section(section) for section in sections])


def _section(section: Section) -> dict[str, Any]:
    groups, name = group_runs(section), anchor("experiment", section.name)
    return {
        "id": name,
        "title": section.title,
        "runs": len(section.records),
        "marks": marks(groups),
        "figures": FIGURES[section.kind](groups, name),
        "table": table(groups),
        "groups": groups,
        "several": len({group.setup for group in groups}) > 1,
        "failed": sum(len(group.failed) for group in groups),
    }
