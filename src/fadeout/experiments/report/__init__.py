"""The report of the experiments: one page, or Markdown, from the records of runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from fadeout._files import write_atomically
from fadeout.experiments.report.records import Record, Section, read

__all__ = ["Section", "by_file", "read", "report"]


def by_file(found: dict[str, list[Record]]) -> list[Section]:
    """A section for each file, as a table, without the paper's values.

    >>> by_file({"runs": []})
    [Section(name='runs', title='runs', kind='table', records=[], published=())]
    """
    return [Section(name, name, "table", records) for name, records in found.items()]


def report(
    results: Path,
    output: Path | None = None,
    *,
    format: Literal["html", "markdown"] = "html",
    arrange: Callable[[dict[str, list[Record]]], list[Section]] = by_file,
) -> Path:
    """Write a report of all runs, beside the paper's values.

    Args:
        results: a folder with EXPERIMENT.jsonl files and HASH/result.json folders, or one such file.
        output: the file to write, by default report.html or report.md.
        format: html is one page that needs no network; markdown has the tables, for a README.
        arrange: makes the sections of the records that were found, by the name of their file.

    Returns:
        The file that was written.
    """
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
    write_atomically(output, lambda path: path.write_text(text, encoding="utf-8"))
    return output
