"""The dots of a table."""

from support.reports import printed, record, section

from fadeout.experiments.report.figures.dots import dots
from fadeout.experiments.report.group_runs import group_runs


def test_a_figure_for_each_setup_with_the_papers_dots():
    made = [record(80.0), record(82.0, method="gmp"), record(70.0, model="mlp")]
    drawn = dots(group_runs(section(made, [printed("han", 0.9, 75.0)])), "salt")
    assert [plot.title for plot in drawn] == ["GCN on Cora, elements", "mlp on Cora, elements"]
    for text in (
        "Han et al., 90 % removed",
        "GMP, 90 % removed",
        "SWD, 90 % removed",
        "accuracy after removal, %",
    ):
        assert f"{text}</text>" in drawn[0].svg
    assert drawn[0].svg.count("<a href") == 2  # the paper's leads nowhere
    assert "GMP" not in drawn[1].svg


def test_long_names_are_broken_into_lines():
    run = {"method": "variant", "sparsity": 0.998, "validation": True}
    made = [record(80.0, fade=f"latents {how}", **run) for how in ("at half of the pace", "from 0.05")]
    (plot,) = dots(group_runs(section(made)), "salt")  # longer than the figure is wide, they left it no room
    assert "variant of the fade, 99.8 % removed, fade latents from 0.05,</text>" in plot.svg
    assert "tested on held-out training data</text>" in plot.svg


def test_seconds_where_the_paper_has_them():
    (plot,) = dots(
        group_runs(section([record(80.0, epochs=10)], [printed("swd", 0.9, 2.0, "seconds")])), "salt"
    )
    assert "seconds an epoch</text>" in plot.svg


def test_nothing_to_draw():
    assert dots(group_runs(section([record(None)], [printed("han", 0.9, 75.0)])), "salt") == []
