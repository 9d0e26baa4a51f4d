"""The report as Markdown, for a README."""

from collections.abc import Sequence

from fadeout.experiments.report.records import Section
from fadeout.experiments.report.rendering import described, render


def markdown(sections: Sequence[Section]) -> str:
    """The report as Markdown: a heading and a table for each experiment, for a grid also its matrices.

    Args:
        sections: the experiments, in the order in which they are shown.
    """
    return render("experiments.md", sections=[described(section) for section in sections]).strip("\n") + "\n"
