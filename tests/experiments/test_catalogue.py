"""The experiments: how many runs each has, and that each can be built."""

import pytest

from fadeout.experiments.catalogue import EXPERIMENTS, TARGETS
from fadeout.experiments.paper import TITLES


def test_every_table_and_figure_has_an_experiment():
    assert TITLES.keys() <= EXPERIMENTS.keys()


def test_targets():
    assert len(TARGETS) == 22
    assert TARGETS[0] == 0.1
    assert TARGETS[-1] == 0.999


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("cora", 18 * 3 * 5 + 4 * 5 * 5 + 4 * 5 * 3),
        ("lenet-grid", 2 * 18),
        ("cifar10-tradeoff", 4 * 22 * 5),
        ("cifar10-short", 10),
        ("imagenet", 3 * 4 + 4 * 4),
        ("comparison", 11),
        ("extended-grid", 50),
        ("strengths", 22 * 4),
        ("ablation", 12),
        ("cost", 6),
        ("demo", 13 + 3),
        ("lenet-mnist", 3 * 4 * 8 + 1),
        ("zero-branches", 3 * 2 * 2),
        ("latent-variants", 17 * (3 * 3 + 2)),
        ("channel-fades", 3 * 3 * 7 + 3 * 5),
        ("fade-variants", 16 * (2 * 4 + 2)),
    ],
)
def test_how_many_runs(name, count):
    runs = EXPERIMENTS[name].runs()
    assert len(runs) == count
    assert len({run.hash for run in runs}) == count


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_run_has_phases_and_structured_ones_may_collapse(name):
    for run in EXPERIMENTS[name].runs():
        assert run.phases()
        if run.structure == "channels" and name in TITLES and name != "cost":
            assert run.min_channels == 0


def test_a_target_in_time_is_not_beside_the_papers():
    assert EXPERIMENTS["cifar10-short"].published()
    assert EXPERIMENTS["rounding"].published() == []
