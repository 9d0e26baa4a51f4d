"""The files that a report writes."""

import pytest
from support.reports import record, write_lines

from fadeout.experiments.catalogue import EXPERIMENTS
from fadeout.experiments.report import arrange, report


def test_files_are_written_whole(tmp_path):
    write_lines(tmp_path / "cora.jsonl", [record(80.0)])
    out = report(tmp_path, tmp_path / "new" / "report.html")
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]
    (tmp_path / "cora.jsonl").rename(tmp_path / "mine.jsonl")
    assert report(tmp_path, tmp_path / "r.md", format="markdown").read_text().startswith("## mine\n")
    with pytest.raises(ValueError, match="it is a folder"):
        report(tmp_path, tmp_path)
    with pytest.raises(ValueError, match="html or markdown, got 'pdf'"):
        report(tmp_path, format="pdf")


def test_the_default_file_is_named_after_the_format(tmp_path, monkeypatch):
    write_lines(tmp_path / "cora.jsonl", [record(80.0)])
    monkeypatch.chdir(tmp_path)
    assert report(tmp_path, format="markdown").name == "report.md"
    assert report(tmp_path).name == "report.html"


def test_the_default_format_is_that_of_the_file(tmp_path):
    write_lines(tmp_path / "cora.jsonl", [record(80.0)])
    for name, start in (("r.md", "## "), ("r.html", "<!doctype html>"), ("r", "<!doctype html>")):
        assert report(tmp_path, tmp_path / name).read_text(encoding="utf-8").startswith(start)
    assert report(tmp_path, tmp_path / "r.md", format="html").read_text().startswith("<!doctype html>")


def test_the_catalogue_says_how_experiments_are_shown_and_in_which_order():
    made = {"of my own": [record(70.0)], "cora": [record(80.0)], "imagenet": [record(60.0)]}
    sections = arrange(made)
    assert [(section.name, section.kind) for section in sections] == [
        ("imagenet", "table"),
        ("cora", "curve"),
        ("of my own", "table"),
    ]
    assert [section.title for section in sections[1:]] == [EXPERIMENTS["cora"].title, "of my own"]
    assert all(section.records == made[section.name] for section in sections)
    assert [bool(section.published) for section in sections] == [True, True, False]


def test_markdown_needs_no_matplotlib(fresh, tmp_path):
    write_lines(tmp_path / "cora.jsonl", [record(80.0)])
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from pathlib import Path\n"
        "from fadeout.experiments.report import report\n"
        f"report(Path({str(tmp_path)!r}), Path({str(tmp_path / 'r.md')!r}), format='markdown')\n"
    )
    assert fresh(code) == (0, "", "")
    assert (tmp_path / "r.md").exists()


def test_what_a_report_needs_is_not_imported_before_it(fresh):
    code = (
        "import sys, fadeout.experiments.report\n"
        "assert not {'pandas', 'jinja2', 'matplotlib'} & set(sys.modules), 'imported too early'\n"
    )
    assert fresh(code) == (0, "", "")
