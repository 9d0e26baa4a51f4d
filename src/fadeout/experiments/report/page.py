"""The report as a page that needs nothing else: style, figures and the little script are inside."""

from collections.abc import Sequence

from fadeout.experiments.report.figures import FIGURES
from fadeout.experiments.report.records import Section
from fadeout.experiments.report.rendering import described, render


def page(sections: Sequence[Section]) -> str:
    """The report as HTML; the same sections give the same bytes.

    Args:
        sections: the experiments, in the order in which they are shown.
    """
    shown = [described(section) for section in sections]
    for one in shown:
        one["figures"] = FIGURES[one["kind"]](one["groups"], one["id"])
    return render("experiments.html", sections=shown)
