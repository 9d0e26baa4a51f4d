"""Tasks have the paper's settings, and say what they do not know."""

import dataclasses
import itertools

import pytest

from fadeout.experiments.run import Run
from fadeout.experiments.tasks import TASKS, grid, task


def test_an_unknown_task_or_field_gets_the_nearest_and_all():
    with pytest.raises(ValueError, match="did you mean gcn-cora") as caught:
        task("gcn-corra")
    assert all(name in str(caught.value) for name in TASKS)
    with pytest.raises(ValueError, match="no field 'sparcity'; did you mean sparsity") as caught:
        task("digits", sparcity=0.5)
    assert all(field.name in str(caught.value) for field in dataclasses.fields(Run))


def test_tasks_have_the_papers_settings():
    for name in ("resnet20-cifar10", "resnet18-cifar10", "resnet34-cifar100"):
        run = TASKS[name]
        assert (run.epochs, run.batch_size, run.lr, run.momentum, run.weight_decay) == (
            *(300, 128, 0.1, 0.9, 5e-4),
        )
        assert (run.fine_tune, run.last_fine_tune, run.learning_rates) == (15, 50, "thirds")
    imagenet = TASKS["resnet50-imagenet"]
    assert (imagenet.epochs, imagenet.weight_decay, imagenet.fine_tune, imagenet.last_fine_tune) == (
        *(90, 1e-4, 5, 15),
    )
    cora = TASKS["gcn-cora"]
    assert (cora.optimizer, cora.lr, cora.epochs, cora.fine_tune, cora.last_fine_tune) == (
        *("adam", 0.01, 2000, 200, 2000),
    )


def test_strengths_are_the_papers_unless_given():
    run = task("resnet20-16-cifar10", method="swd", structure="channels")
    assert (run.a_min, run.a_max) == (1e2, 1e6)
    run = task("resnet20-16-cifar10", method="swd", a_max=7.0)
    assert (run.a_min, run.a_max) == (1.0, 7.0)
    assert task("resnet20-16-cifar10").a_min is None
    with pytest.raises(ValueError, match="the paper names no strength for resnet18"):
        task("resnet18-cifar10", method="swd")


def test_channels_on_imagenet_are_fine_tuned_longer():
    assert task("resnet50-imagenet", method="liu", structure="channels").last_fine_tune == 40
    assert task("resnet50-imagenet", method="liu", structure="channels", last_fine_tune=3).last_fine_tune == 3
    assert task("resnet50-imagenet", method="han").last_fine_tune == 15


def test_groups_are_complete_unless_a_sparsity_is_given():
    assert task("digits", structure="nm") == task("digits", structure="nm", sparsity=0.5)
    assert task("digits", structure="nm", n=1, m=8).sparsity == 0.875
    assert task("digits", structure="nm", sparsity=0.3).sparsity == 0.3


def test_a_grid_has_all_combinations_and_the_last_field_changes_fastest():
    fades = [{"method": "auto"}, {"method": "swd", "a_min": 1.0, "a_max": 7.0}]
    runs = list(grid(("digits", "gcn-cora"), fades, seed=range(2), sparsity=0.5))
    wanted = itertools.product(("digits", "cora"), (0, 1), ("auto", "swd"))
    assert [(run.data, run.seed, run.method) for run in runs] == list(wanted)
    assert runs[1] == task("digits", method="swd", a_min=1.0, a_max=7.0, seed=0, sparsity=0.5)
