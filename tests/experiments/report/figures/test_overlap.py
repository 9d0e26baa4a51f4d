"""The figure of kept sets."""

from support.reports import record, section

from fadeout.experiments.report.figures.overlap import overlaps
from fadeout.experiments.report.group_runs import group_runs


def noted(*points, **run):
    return record(80.0, **run) | {"overlap": [list(point) for point in points]}


def drawn(records):
    return overlaps(group_runs(section(records)), "salt")


def test_each_setup_has_a_figure_at_the_target_that_most_methods_have():
    records = [noted((1.0, 1.0), method=name) for name in ("auto", "gmp")]
    records += [noted((1.0, 1.0), method="auto", sparsity=0.99), noted((1.0, 1.0), model="mlp")]
    cora, mlp = drawn(records)
    assert cora.title == "GCN on Cora, elements, 90 % removed: when the kept set is decided"
    assert "GMP</text>" in cora.svg
    assert "99 %" not in cora.svg
    assert mlp.title.startswith("mlp on Cora")


def test_of_equally_many_methods_the_highest_target_counts():
    (plot,) = drawn([noted((1.0, 1.0), sparsity=sparsity) for sparsity in (0.9, 0.99)])
    assert "99 % removed" in plot.title


def test_a_line_is_the_mean_over_the_seeds():
    one, other = (noted((0.5, share), (1.0, 1.0), seed=seed) for seed, share in enumerate((0.2, 0.6)))
    (plot,), (mean,) = drawn([one, other]), drawn([noted((0.5, 0.4), (1.0, 1.0))])
    assert plot.svg == mean.svg


def test_runs_that_noted_nothing_are_not_drawn():
    assert drawn([record(80.0), record(None)]) == []
