"""The Markdown, by hand."""

from support.reports import printed, record, section

from fadeout.experiments.report.page import markdown


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
