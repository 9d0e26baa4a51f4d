"""The lines of a curve and their looks."""

from support.reports import record, section

from fadeout.experiments.report.figures.curves import lines, looks
from fadeout.experiments.report.group_runs import group_runs
from fadeout.experiments.report.styles import METHODS


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


def test_more_lines_of_a_method_than_looks():
    made = [record(80.0, a_min=0.1, a_max=10.0**a) for a in range(15)]
    named = lines(group_runs(section(made)))
    assert len(looks(named)) == len(named) == 15
    assert METHODS["dense"] not in looks(named)
