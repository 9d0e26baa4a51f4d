"""Published values against the source of the paper, read in order by other rules, where it is at hand."""

import os
import re
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest

from fadeout.experiments.paper import VALUES, published

PAPER = os.environ.get("FADEOUT_PAPER", "")


@pytest.fixture(scope="module")
def floats():
    """Text of each table and figure by its number in print."""
    if not PAPER:
        pytest.skip("FADEOUT_PAPER does not name the folder with the source of the paper")
    source = Path(PAPER) / "rethinking-weight-decay.tex"
    tex = re.sub(r"(?m)^\s*%.*$", "", source.read_text(encoding="utf-8"))
    found, last = {}, Counter()
    for kind, text in re.findall(r"\\begin\{(table|figure)\}(.*?)\\end\{\1\}", tex, re.DOTALL):
        last[kind] += r"\ContinuedFloat" not in text
        name = f"{kind.title()} {last[kind]}"
        found[name] = found.get(name, "") + text
    return found


def of(source):
    return [v for v in VALUES if v.source == source]


def test_the_source_has_the_same_tables_and_figures(floats):
    assert set(floats) - {"Figure 1"} == {v.source for v in VALUES}  # Figure 1 is a drawing


@pytest.mark.parametrize("source", [f"Figure {n}" for n in range(2, 7)])
def test_figures_equal_the_source(floats, source):
    text = floats[source].replace("(0. ,", "(0.2 ,")  # the slip in Figure 5
    plots = re.findall(r"\\addplot coordinates\s*\{(.*?)\}", text, re.DOTALL)
    printed = [re.findall(r"\(\s*([\d.]+)\s*,\s*([\d.]+)\s*\)", plot) for plot in plots]
    ours = {}
    for v in of(source):
        left = round(100 - 100 * v.sparsity, 4)
        ours.setdefault((v.structure, v.method, v.a_min, v.a_max), []).append((left, v.value))
    order = ["han", "liu", "one_shot", "growing_decay", "rewinding", "swd"]  # of every legend
    keys = sorted(ours, key=lambda k: (k[0] == "channels", order.index(k[1]), k[2] or 0, k[3] or 0))
    assert [ours[key] for key in keys] == [[(float(x), float(y)) for x, y in plot] for plot in printed]


@pytest.mark.parametrize("source", ["Table 2", "Table 3", "Table 9"])
def test_tables_equal_the_source(floats, source):
    body = floats[source].split(r"\begin{tabular}")[1]
    body = re.sub(r"\\text(bf|color\{gray\})\{(.*?)\}|\\midrule", r"\2", body)
    rows = [[cell.strip() for cell in row.split("&")] for row in body.split(r"\\")]
    rows = [row for row in rows if re.fullmatch(r"[\d.]+", row[0])]
    printed = [[None if c == "*" else float(c) for c in row if c] for row in rows]
    values = [v for v in of(source) if (v.width, v.a_max) != (64, 1e6)]  # the caption's point
    ours = []
    for (_, sparsity), line in groupby(values, lambda v: (v.structure, v.sparsity)):
        target = 100 * sparsity if source != "Table 2" else 100 - 100 * sparsity
        ours.append([round(target, 4), *(v.value for v in line)])
    assert ours == printed


def test_the_point_of_the_caption_equals_the_source(floats):
    caption = floats["Table 3"].split(r"\begin{tabular}")[0]
    values = published("cifar10-tradeoff", width=64, a_max=1e6)
    assert [float(n) for n in re.findall(r"([\d.]+)\\%", caption)] == [v.value for v in values]


def test_comparison_equals_the_source(floats):
    rows = re.findall(r"(\\times.*?\))\s*\\\\", floats["Table 1"])
    printed = [re.findall(r"[+-]?\d+(?:\.\d+)?", row.replace("$-$", "-")) for row in rows]
    ours = [v.value for v in of("Table 1")]
    assert ours == [float(number) for row in printed for number in row]


def test_cost_equals_the_source(floats):
    rows = re.findall(r"(Seconds per epoch|Increase \(\\%\))((?: & \d+)+)", floats["Table 10"])
    printed = [[float(n) for n in numbers.split("&")[1:]] for _, numbers in rows]
    ours = [
        [v.value for v in published("cost", network=network, metric=metric)]
        for network in ("resnet50", "resnet20")
        for metric in ("seconds", "increase")
    ]
    assert ours == printed


@pytest.mark.parametrize("source", [f"Table {n}" for n in range(4, 9)])
def test_grids_equal_the_source(floats, source):
    blocks = re.findall(r"\\foreach \\y.*?in \{(.*?)\}\s*\{\s*\\foreach", floats[source], re.DOTALL)
    a_min, a_max, printed = None, None, []
    for block in blocks:
        if strengths := [float(f"1e{power}") for power in re.findall(r"10\^\{(-?\d+)\}", block)]:
            if re.search(r"\}\}\s*,\s*$", block) and block.count("{{") == 1 and strengths[0] > strengths[-1]:
                a_min = strengths  # one line of cells, falling
            else:
                a_max = strengths
        elif "a_{" not in block:
            rows = [[float(cell) for cell in row.split(",")] for row in re.findall(r"\{(.*?)\}", block)]
            cells = zip(a_max, rows, strict=True)
            printed.append([(end, *pair) for end, row in cells for pair in zip(a_min, row, strict=True)])
    ours = {}
    for v in of(source):
        ours.setdefault((v.network, v.sparsity, v.metric), []).append((v.a_max, v.a_min, v.value))
    assert [metric for *_, metric in ours] == ["after", "change"] * (len(printed) // 2)
    assert list(ours.values()) == printed
