"""What groups say of themselves, and the grids that they make."""

from support import reports
from support.reports import printed, record, section

from fadeout.experiments.report.group_runs import group_runs
from fadeout.experiments.report.groups import grids, marks


def test_a_group_says_what_it_is():
    strong = {
        "method": "swd",
        "a_min": 0.1,
        "a_max": 1e4,
        "model": "resnet20",
        "width": 64,
        "data": "cifar10",
    }
    (group,) = group_runs(section([record(80.0, epochs_scale=0.5, steps=10, **strong)]))
    assert group.title == "SWD, a 0.1 to 10⁴, 90 % removed"
    assert group.where == "ResNet-20, 64 maps on CIFAR-10, elements"
    assert group.mark == marks([group]) == "half the length, at most 10 steps an epoch"


def test_marks_of_several_groups():
    whole, half, tenth = (record(80.0, epochs_scale=scale) for scale in (1.0, 0.5, 0.1))
    assert marks(group_runs(section([whole]))) == ""
    assert marks(group_runs(section([half, tenth]))) == "a tenth of the length or half the length"
    assert marks(group_runs(section([whole, tenth]))) == "in part a tenth of the length"
    assert marks(group_runs(section([tenth], [printed("han", 0.9, 70.0)]))) == "a tenth of the length"


def test_cells_of_a_grid():
    found = grids(group_runs(reports.grid()))
    assert [len(grid.cells) for grid in found] == [12, 12]
    assert (found[0].a_mins, found[0].a_maxs) == ([0.1, 1.0, 10.0], [1e1, 1e2, 1e3, 1e4])
    assert found[0].first.records
    only = grids(group_runs(section([], [printed("swd", 0.9, 70.0, a_min=1.0, a_max=10.0)])))
    assert [list(grid.cells) for grid in only] == [[(1.0, 10.0)]]
