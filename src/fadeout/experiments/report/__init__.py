"""The report of the experiments: one page, or Markdown, from the records of runs."""

from pathlib import Path
from typing import Literal

from fadeout._files import write_text
from fadeout.experiments.report.records import Record, Section, read

__all__ = ["Section", "arrange", "read", "report"]


def arrange(found: dict[str, list[Record]]) -> list[Section]:
    """The sections of a report: the experiments in the catalogue's order, then what belongs to none.

    >>> arrange({"runs": []})
    [Section(name='runs', title='runs', kind='table', records=[], published=())]
    """
    from fadeout.experiments.catalogue import EXPERIMENTS  # here: figures need no experiments

    known = [experiment for name, experiment in EXPERIMENTS.items() if name in found]
    others = sorted(found.keys() - EXPERIMENTS.keys())
    return [
        *(Section(e.name, e.title, e.kind, found[e.name], e.published()) for e in known),
        *(Section(name, name, "table", found[name]) for name in others),
    ]


def report(
    results: Path, output: Path | None = None, *, format: Literal["html", "markdown"] | None = None
) -> Path:
    """Write a report of all runs, beside the paper's values.

    Args:
        results: a folder with EXPERIMENT.jsonl files and HASH/result.json folders, or one such file.
        output: the file to write, by default report.html or report.md.
        format: html is one page that needs no network; markdown has the tables, for a README. By default
            markdown for a file ``*.md``, and html for all others.

    Returns:
        The file that was written.
    """
    if format is None:
        format = "markdown" if output is not None and output.suffix == ".md" else "html"
    if format not in ("html", "markdown"):
        raise ValueError(f"the format of a report is html or markdown, got {format!r}")
    output = output or Path("report.html" if format == "html" else "report.md")
    if output.is_dir():
        raise ValueError(
            f"cannot write to {output}: it is a folder; name a file, such as {output / 'report.html'}"
        )
    sections = arrange(read(results))
    from fadeout.experiments.report.page import markdown, page  # here: other commands need no templates

    text = page(sections) if format == "html" else markdown(sections)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, text)
    return output
