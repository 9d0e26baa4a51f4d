"""The files that a report writes."""

import subprocess
import sys

import pytest
from support.reports import record, write_lines

from fadeout.experiments.report import Section, report


def test_files_are_written_whole(tmp_path):
    write_lines(tmp_path / "cora.jsonl", [record(80.0)])
    out = report(tmp_path, tmp_path / "new" / "report.html")
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]
    assert report(tmp_path, tmp_path / "r.md", format="markdown").read_text().startswith("## cora\n")
    with pytest.raises(ValueError, match="it is a folder"):
        report(tmp_path, tmp_path)
    with pytest.raises(ValueError, match="html or markdown, got 'pdf'"):
        report(tmp_path, format="pdf")


def test_the_default_file_is_named_after_the_format(tmp_path, monkeypatch):
    write_lines(tmp_path / "cora.jsonl", [record(80.0)])
    monkeypatch.chdir(tmp_path)
    assert report(tmp_path, format="markdown").name == "report.md"
    assert report(tmp_path).name == "report.html"


def test_who_arranges_the_sections_may_be_said(tmp_path):
    write_lines(tmp_path / "cora.jsonl", [record(80.0)])
    out = report(
        tmp_path,
        tmp_path / "r.md",
        format="markdown",
        arrange=lambda found: [Section(name, "Another", "curve", made) for name, made in found.items()],
    )
    assert out.read_text().startswith("## Another\n")


def test_markdown_needs_no_matplotlib(tmp_path):
    write_lines(tmp_path / "cora.jsonl", [record(80.0)])
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from pathlib import Path\n"
        "from fadeout.experiments.report import report\n"
        f"report(Path({str(tmp_path)!r}), Path({str(tmp_path / 'r.md')!r}), format='markdown')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert (tmp_path / "r.md").exists()


def test_what_a_report_needs_is_not_imported_before_it():
    code = (
        "import sys, fadeout.experiments.report\n"
        "assert not {'pandas', 'jinja2', 'matplotlib'} & set(sys.modules), 'imported too early'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
