import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from support import reports
from support.reports import printed, record

from fadeout.experiments.report import Section, markdown, read, report
from fadeout.experiments.report.figures.curves import lines, looks
from fadeout.experiments.report.groups import axes_of, grids
from fadeout.experiments.report.page import page
from fadeout.experiments.report.statistics import group_runs
from fadeout.experiments.report.styles import COLOURS, METHODS, OTHER
from fadeout.experiments.report.tables import table


def section(records, published=(), kind="table", name="one"):
    return Section(name, "A title", kind, records, published)


def write_lines(path, records):
    path.write_text("".join(json.dumps(one) + "\n" for one in records))


def write_run(folder, one):
    (folder / one["hash"]).mkdir()
    (folder / one["hash"] / "result.json").write_text(json.dumps(one))


# Reading


def test_files_are_experiments_and_folders_are_runs(tmp_path):
    a, b, c = (record(80.0, seed=seed) for seed in range(3))
    write_lines(tmp_path / "cora.jsonl", [a, b])
    write_lines(tmp_path / "other.jsonl", [b])
    for one in (a, c):
        write_run(tmp_path, one)
    assert read(tmp_path) == {"cora": [a, b], "other": [b], "runs": [c]}
    assert read(tmp_path / "cora.jsonl") == {"cora": [a, b]}
    assert read(tmp_path / c["hash"]) == read(tmp_path / c["hash"] / "result.json") == {"runs": [c]}


def test_the_same_run_counts_once_and_done_counts_more_than_failed(tmp_path):
    failed, done = record(None), record(80.0)
    assert failed["hash"] == done["hash"]
    write_lines(tmp_path / "a.jsonl", [failed, done])
    write_lines(tmp_path / "b.jsonl", [done, failed])
    write_lines(tmp_path / "c.jsonl", [failed])
    assert read(tmp_path) == {"a": [done], "b": [done], "c": [failed]}
    write_run(tmp_path, done)  # it was run again
    assert read(tmp_path) == {"a": [done], "b": [done], "c": [done]}


DAMAGED = {
    "{": "damaged, not JSON",
    "[]": 'no "version"',
    '{"method": "swd"}': 'no "version"',
    json.dumps({**record(1.0), "version": 2}): r"written by a newer fadeout \(version 2",
    json.dumps({**record(1.0), "version": True}): 'no "version"',
    json.dumps({**record(1.0), "hash": 3}): 'no "hash"',
    json.dumps({**record(1.0), "status": "running"}): "its \"status\" is 'running'",
    json.dumps({**record(1.0), "after": None}): 'no accuracy "after"',
    json.dumps({**record(1.0), "after": "high"}): "\"after\" is 'high'",
    json.dumps(record(1.0, sparsity=0.5) | {"run": {"sparsity": "half"}}): "\"sparsity\" is 'half'",
}


@pytest.mark.parametrize("line", DAMAGED)
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "cora.jsonl"
    path.write_text(json.dumps(record(80.0)) + "\n\n" + line + "\n")
    with pytest.raises(ValueError, match=DAMAGED[line]) as caught:
        read(tmp_path)
    assert str(caught.value).startswith(f"{path}, line 3: ")


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "cora.jsonl").write_bytes(b'{"version": "\xff"}\n')
    with pytest.raises(ValueError, match="line 1: damaged"):
        read(tmp_path)


def test_nothing_found(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(
        ValueError, match=r"no results in .*: looked for records in \*.jsonl and \*/result.json"
    ):
        read(tmp_path)
    with pytest.raises(ValueError, match="there is no such file or folder"):
        read(tmp_path / "absent")


def test_an_unknown_kind():
    with pytest.raises(ValueError, match="one of curve, grid, table, got 'pie'"):
        section([], kind="pie")


# Grouping


def test_means_by_hand():
    made = [record(80.0, 81.0, seed=0), record(82.0, 82.0, seed=1), record(84.0, 86.0, seed=2)]
    (group,) = group_runs(section(made[::-1]))
    after, change = group.estimates["after"], group.estimates["change"]
    assert (after.mean, after.std, after.seeds) == (82.0, 2.0, 3)
    assert (change.mean, change.std) == (-1.0, 1.0)  # -1, 0 and -2
    assert group.estimates.get("top5") is None
    assert group.estimates["operations"].mean == pytest.approx(100 * 9_000 / 416_520)
    assert [one["run"]["seed"] for one in group.records] == [0, 1, 2]


def test_one_seed_has_no_spread():
    (group,) = group_runs(section([record(80.0)]))
    assert group.estimates["after"].std is None


def test_what_is_not_finite_stays_so():
    (group,) = group_runs(section([record(math.nan), record(80.0, seed=1)]))
    assert math.isnan(group.estimates["after"].mean)
    assert "not a number" in page([section([record(math.nan), record(80.0, seed=1)], kind="curve")])


def test_failed_runs_are_counted_apart():
    (group,) = group_runs(section([record(80.0), record(None, seed=1)]))
    assert (len(group.done), len(group.failed), group.estimates["after"].mean) == (1, 1, 80.0)


def test_settings_that_nothing_else_tells_apart_are_named():
    made = [record(80.0, method=m, preset=p) for m in ("swd", "gmp") for p in ("paper", "authors")]
    made.append(record(80.0, method="han", epochs=3))
    named = {(group.method, group.note) for group in group_runs(section(made))}
    assert named == {
        ("swd", "preset paper"),
        ("swd", "preset authors"),
        ("gmp", "preset paper"),
        ("gmp", "preset authors"),
        ("han", ""),
    }


def test_held_out_data_are_named():
    assert [g.note for g in group_runs(section([record(80.0, validation=True)]))] == [
        "tested on held-out training data"
    ]
    both = section([record(80.0, validation=True), record(80.0, validation=False)])
    assert sorted(g.note for g in group_runs(both)) == ["", "tested on held-out training data"]


def test_change_is_what_removal_did_before_any_fine_tuning():
    (group,) = group_runs(section([{**record(80.0, 82.0), "removed": 30.0}]))
    assert group.estimates["change"].mean == -52.0


def test_strengths_belong_to_the_methods_that_have_them():
    made = [record(80.0, method=method, a_min=0.1, a_max=1e4) for method in ("swd", "gmp", "auto")]
    assert {g.method: g.strengths for g in group_runs(section(made))} == {
        "swd": (0.1, 1e4),
        "gmp": (None, None),
        "auto": (None, None),
    }


# The paper's values


def test_published_values_stand_beside_ours():
    made = [record(80.0, seed=0, sparsity=0.9), record(81.0, seed=1, sparsity=0.9)]
    published = [
        printed("swd", 0.1 + 0.8, 79.0),
        printed("swd", 0.9, -0.5, "change"),
        printed("han", 0.9, 77.0),
    ]
    ours, theirs = sorted(group_runs(section(made, published)), key=lambda group: not group.records)
    assert ours.published == {"after": 79.0, "change": -0.5}
    assert ours.difference("after") == 1.5
    assert ours.difference("change") == 0.5
    assert (theirs.method, theirs.published, theirs.difference("after")) == ("han", {"after": 77.0}, None)
    assert theirs.setup == ours.setup


def test_all_that_a_published_value_says_must_agree():
    run = {"method": "swd", "width": 64, "a_min": 0.1, "a_max": 1e4}
    fitting = printed("swd", 0.9, 79.0, width=64, a_min=0.1, a_max=1e4)
    for value in (fitting, replace(fitting, width=None), replace(fitting, a_min=None, a_max=None)):
        assert len(group_runs(section([record(80.0, **run)], [value]))) == 1
    for other in (
        {"width": 16},
        {"a_max": 1e5},
        {"data": "mnist"},
        {"structure": "channels"},
        {"sparsity": 0.8},
    ):
        assert len(group_runs(section([record(80.0, **run)], [replace(fitting, **other)]))) == 2


def test_the_more_exact_value_counts():
    values = [printed("swd", 0.9, 70.0), printed("swd", 0.9, 79.0, a_min=0.1, a_max=1e4)]
    (group,) = group_runs(section([record(80.0, a_min=0.1, a_max=1e4)], values))
    assert group.published == {"after": 79.0}


def test_a_table_counts_more_than_its_figure():
    figure, exact = printed("swd", 0.9, 79.0), replace(printed("swd", 0.9, 79.04), source="Table 3")
    for values in ([figure, exact], [exact, figure]):
        (group,) = group_runs(section([record(80.0)], values))
        assert group.published == {"after": 79.04}


def test_what_a_published_value_leaves_open():
    cost = printed("swd", None, 40.0, "increase")  # of any target
    dense = printed("dense", None, 81.0, structure="none")
    made = [record(80.0), record(82.0, method="dense")]
    found = {group.method: group for group in group_runs(section(made, [cost, dense]))}
    assert found["swd"].published == {"increase": 40.0}
    assert found["dense"].published == {"after": 81.0}
    assert found["dense"].sparsity == 0  # whatever its run says
    shown = table(list(found.values()))
    assert "increase, paper" in shown.columns


def test_seconds_are_shown_beside_the_papers_only():
    made = [record(80.0, epochs=100, epochs_scale=0.1)]
    assert "seconds an epoch" not in table(group_runs(section(made))).columns
    shown = table(group_runs(section(made, [printed("swd", 0.9, 77.0, "seconds")])))
    cells = dict(zip(shown.columns, shown.rows[0], strict=True))
    assert cells["seconds an epoch"].text == "1.23"
    assert cells["seconds an epoch, difference"].text == "-75.77"
    assert group_runs(section([record(80.0, steps=3)]))[0].estimates.get("seconds") is None
    assert "seconds an epoch</text>" in page([section(made, [printed("swd", 0.9, 77.0, "seconds")])])


def test_a_hole_in_the_paper():
    (group,) = group_runs(section([record(80.0)], [printed("swd", 0.9, None)]))
    assert (group.published, group.difference("after")) == ({"after": None}, None)
    shown = table([group])
    assert shown.rows[0][shown.columns.index("after, paper")].text == "none"


# Tables and plots


def test_a_table_by_hand():
    made = [record(80.0, 82.0, seed=0), record(81.0, 83.0, seed=1), record(79.0, method="gmp")]
    shown = table(group_runs(section(made, [printed("swd", 0.9, 81.0)])))
    assert shown.columns[:6] == ["method", "removed", "seeds", "after", "after, paper", "after, difference"]
    texts = [[cell.text for cell in row] for row in shown.rows]
    assert texts[0][:7] == ["GMP", "90 %", "1", "79.00", "", "", "0.00"]
    assert texts[1][:7] == ["SWD", "90 %", "2", "80.50 ± 0.71", "81.00", "-0.50", "-2.00 ± 0.00"]
    assert shown.rows[1][6].mark == "fell"
    assert "weights left, %" not in shown.columns  # exactly as many as were asked for


def test_weights_left_are_shown_where_they_are_not_the_target():
    shown = table(group_runs(section([{**record(80.0), "parameters_left": 7000}])))
    assert shown.rows[0][shown.columns.index("weights left, %")].text == "11.3"


def test_lines_of_a_curve():
    made = [record(80.0, sparsity=s, a_min=0.1, a_max=a) for s in (0.5, 0.9) for a in (1e3, 1e4)]
    made += [record(80.0, sparsity=s, method="gmp", epochs_scale=0.1) for s in (0.5, 0.9)]
    named = lines(group_runs(section(made)))
    assert {name: len(points) for name, points in named.items()} == {
        "SWD, 0.1 to 10³": 2,
        "SWD, 0.1 to 10⁴": 2,
        "GMP, a tenth of the length": 2,
    }
    chosen = looks(named)
    assert len(set(chosen)) == 3
    assert {METHODS["swd"], METHODS["gmp"]} < set(chosen)


def test_cells_of_a_grid():
    cells = grids(group_runs(reports.grid()))
    assert [len(one) for one in cells] == [12, 12]
    assert axes_of(cells[0]) == ([0.1, 1.0, 10.0], [1e1, 1e2, 1e3, 1e4])
    only = grids(group_runs(section([], [printed("swd", 0.9, 70.0, a_min=1.0, a_max=10.0)])))
    assert [list(one) for one in only] == [[(1.0, 10.0)]]


def test_every_method_has_a_look_of_its_own():
    every = [*METHODS.values(), OTHER]
    for part in ("label", "light", "dark", "marker"):
        assert len({getattr(look, part) for look in every}) == len(every)
    assert len(set(COLOURS.values())) == len(COLOURS)  # or a page could not exchange them one by one
    (group,) = group_runs(section([record(80.0, method="no such method")]))
    assert (group.look, group.label) == (OTHER, "no such method")


MAIN = ("auto", "swd", "gmp", "han", "liu", "rewinding", "one_shot", "dense")


@pytest.mark.parametrize("page_is", ["light", "dark"])
@pytest.mark.parametrize("blind", ["protan", "deutan"])
def test_methods_that_are_often_compared_differ_for_colour_blind_eyes(page_is, blind):
    seen = {m: simulated(getattr(METHODS[m], page_is), blind) for m in MAIN}
    for one in seen:
        for other in seen:
            assert one == other or math.dist(seen[one], seen[other]) > 12, (one, other)


def simulated(colour, blind):
    """CIELAB coordinates of a colour as seen with full dichromacy (Machado, Oliveira and Fernandes, 2009)."""
    matrix = {
        "protan": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
        "deutan": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    }[blind]
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    for step in (matrix, to_xyz):
        linear = [max(0.0, sum(w * c for w, c in zip(row, linear, strict=True))) for row in step]
    x, y, z = (math.cbrt(c / white) for c, white in zip(linear, (0.9505, 1, 1.089), strict=True))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


# The page


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


# Markdown and files


def test_markdown_by_hand():
    made = [record(80.0, seed=0), record(81.0, seed=1), record(None, seed=2)]
    assert markdown([section(made, [printed("swd", 0.9, 81.0)])]) == (
        "## A title\n\n"
        "GCN on Cora, elements.\n\n"
        "| method | removed | seeds | after | after, paper | after, difference | change | before |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|\n"
        "| SWD | 90 % | 2, 1 failed | 80.50 ± 0.71 | 81.00 | -0.50 | 0.00 ± 0.00 | 80.50 ± 0.71 |\n\n"
        "Failed runs:\n\n"
        "- SWD, 90 % removed, seed 2: OverflowError: &lt;b&gt;too&lt;/b&gt; large\n"
    )


def test_markdown_of_a_grid_is_a_matrix():
    made = [record(80.0 + a_min, a_min=a_min, a_max=a_max) for a_min in (1.0, 2.0) for a_max in (10.0, 1e4)]
    text = markdown([section(made[1:], [printed("swd", 0.9, 79.0, a_min=2.0, a_max=10.0)], "grid")])
    assert (
        "| a_min \\ a_max | 10 | 10⁴ |\n|---|---:|---:|\n| 1 |  | 81.00 |\n| 2 | 82.00 (79.00) | 82.00 |"
        in text
    )


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
