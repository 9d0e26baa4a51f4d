"""The page: whole, linked, escaped, marked; test_page_browser.py opens it in a browser."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from support import reports
from support.reports import printed, record, section

from fadeout.experiments.report import Section
from fadeout.experiments.report.group_runs import group_runs
from fadeout.experiments.report.page import markdown, page


@pytest.fixture(scope="module")
def whole():
    return page([reports.curve(), reports.grid(), reports.tabular()])


class Elements(HTMLParser):
    """Identifiers and links of a page; closing another element than the last one opened fails."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)
        if "id" in found:
            self.ids.append(found["id"])
        if tag == "a":
            self.links.append(found.get("href", ""))

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(whole):
    found = Elements(whole)
    assert found.open == []
    assert len(set(found.ids)) == len(found.ids)
    assert {link.removeprefix("#") for link in found.links} <= set(found.ids)
    assert "http:" not in whole
    assert "https:" not in whole
    assert whole.count("<svg") == 1 + 8 + 2


def test_each_point_and_each_row_leads_to_its_configuration(whole):
    anchors = {group.anchor for group in group_runs(reports.curve()) if group.done}
    rows = set(re.findall(r'<td[^>]*><a href="#(cora-[^"]+)"', whole))
    points = set(re.findall(r'<a href="#(cora-[^"]+)" aria-label', whole))
    assert rows == points == anchors
    assert "SWD, a 0.1 to 10⁴, 50 % removed: 80.50 ± 0.40 (3 seeds)" in whole


def test_the_same_sections_give_the_same_page(whole):
    sections = [reports.curve(), reports.grid(), reports.tabular()]
    assert page([replace(one, records=one.records[::-1]) for one in sections]) == whole


def test_everything_is_escaped():
    evil = "<script>alert('&\")</script>"
    run = {"data": evil, "model": evil, "structure": evil, "method": evil, "preset": evil}
    made = [
        record(80.0, **run),
        {**record(None, seed=evil, **run), "hash": evil, "error": evil, "machine": evil},
    ]
    made[0] |= {"commit": evil, "versions": {evil: evil}}
    for kind in ("curve", "grid", "table"):
        one = Section(evil, evil, kind, made, [printed(evil, 0.5, 3.0, evil)])
        text = page([one])
        assert text.count("<script>") == 1
        assert "<script>alert" not in text
        assert Elements(text).open == []
        assert "<script" not in markdown([one])


@pytest.mark.parametrize("kind", ["curve", "grid", "table"])
def test_sections_with_hardly_anything(kind):
    for made, published in (
        ([], []),
        ([record(None)], []),
        ([record(99.5, method="dense", sparsity=0.0)], []),
        ([record(100.0), record(99.0, seed=1)], []),
        ([], [printed("swd", 0.9, 3.0), printed("swd", 0.9, 3.0, a_min=0.1, a_max=1.0)]),
        ([], [printed("swd", 0.9, None, a_min=0.1, a_max=1.0)]),
        ([{"version": 1, "hash": "3f", "status": "done", "after": 3, "run": {}}], []),
    ):
        one = section(made, published, kind)
        assert Elements(page([one])).open == []
        assert markdown([one]).startswith("## A title\n")
    assert Elements(page([])).open == []


def test_shortened_runs_are_marked_everywhere():
    short = section([record(80.0, epochs_scale=0.1)], kind="curve")
    text = page([short])
    badge = '<span class="badge">a tenth of the length</span>'
    assert f"A title {badge}</h2>" in text
    assert f"GCN on Cora, elements {badge}</h3>" in text
    assert f"SWD</a> {badge}</td>" in text
    assert "SWD (**a tenth of the length**)" in markdown([short])
    full = section([record(80.0)], kind="curve")
    assert "of the length" not in page([full]) + markdown([full])
    cut = section([record(80.0, steps=5)])
    assert "at most 5 steps an epoch" in page([cut])
    assert "at most 5 steps an epoch" in markdown([cut])
    both = section([record(80.0), record(81.0, epochs_scale=0.1)], kind="curve")
    assert "in part a tenth of the length" in page([both])
