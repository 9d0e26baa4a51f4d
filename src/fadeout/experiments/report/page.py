"""Pages that need nothing else: style, figures and the little script are inside."""

import json
from collections.abc import Sequence
from typing import Any

from fadeout._checks import extra
from fadeout.experiments.report import formatting
from fadeout.experiments.report.figures import FIGURES
from fadeout.experiments.report.groups import Group, anchor, marks
from fadeout.experiments.report.records import Section
from fadeout.experiments.report.statistics import group_runs
from fadeout.experiments.report.styles import METHODS, OTHER
from fadeout.experiments.report.tables import runs_table, table

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
_TEMPLATES.filters |= {
    "percent": formatting.percent,
    "last_line": formatting.last_line,
    "settings": lambda run: json.dumps(
        {k: v for k, v in run.items() if k != "seed"}, indent=2, ensure_ascii=False
    ),
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
    several = len({group.setup for group in groups}) > 1

    def title(group: Group) -> str:
        return formatting.joined(group.title, group.where if several else "")

    return {
        "id": name,
        "title": section.title,
        "runs": len(section.records),
        "marks": marks(groups),
        "figures": FIGURES[section.kind](groups, name),
        "table": table(groups),
        "groups": groups,
        "failed": [(group, title(group), record) for group in groups for record in group.failed],
        "configurations": [(g, title(g), runs_table(g.records)) for g in groups if g.records],
    }
