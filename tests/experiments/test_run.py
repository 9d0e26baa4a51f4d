"""What a run is: its hash, what it checks, what it builds."""

import dataclasses

import pytest
import torch

from fadeout.experiments.run import DATA, METHODS, MODELS, Run
from fadeout.experiments.tasks import TASKS, task


def test_hashes_stay_so_that_old_results_are_found():
    assert Run().hash == "44136fa355b3"
    assert task("digits", method="gmp", seed=3).hash == "35283b42ed58"
    assert task("gcn-cora", method="han", sparsity=0.99).hash == "0a9642f93bf6"
    assert task("gcn-cora", method="swd", sparsity=0.99).hash == "e05eebc726fb"
    assert task("lenet5-mnist", method="swd", a_min=1e-4, a_max=1e1, epochs_scale=0.1).hash == "c78c2d72148f"
    assert task("resnet20-cifar10", structure="channels", min_channels=0).hash == "b980f7235a49"


def test_a_new_field_with_a_neutral_default_renames_nothing():
    @dataclasses.dataclass(frozen=True)
    class Later(Run):
        brand_new: float = 0.0

    assert Later(seed=3).hash == Run(seed=3).hash
    assert Later(seed=3, brand_new=1.0).hash != Run(seed=3).hash


def test_equal_runs_have_equal_hashes():
    assert Run(lr=1, a_min=2) == Run(lr=1.0, a_min=2.0)
    assert Run(lr=1, a_min=2).hash == Run(lr=1.0, a_min=2.0).hash
    assert len({Run(seed=seed, method=m).hash for seed in range(5) for m in ("auto", "gmp")}) == 10
    assert Run(**Run(seed=4, lr=0.2).to_dict()).hash == Run(seed=4, lr=0.2).hash


def test_a_run_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Run().seed = 3  # pyright: ignore


@pytest.mark.parametrize(
    ("fields", "near", "all_of"),
    [
        ({"data": "digit"}, "did you mean digits", DATA),
        ({"model": "resnet2"}, "did you mean resnet", MODELS),
        ({"method": "gnp"}, "did you mean gmp", METHODS),
        ({"structure": "channel"}, "did you mean channels", ("elements", "channels")),
        ({"optimizer": "adm"}, "did you mean adam", ("sgd", "adam")),
        ({"learning_rates": "cosin"}, "did you mean cosine", ("thirds", "restarts")),
        ({"preset": "author"}, "did you mean authors", ("paper", "authors")),
    ],
)
def test_an_unknown_name_gets_the_nearest_and_all(fields, near, all_of):
    with pytest.raises(ValueError, match=near) as caught:
        Run(**fields)
    for name in all_of:
        assert name in str(caught.value)


def test_an_unknown_task_or_field_gets_the_nearest_and_all():
    with pytest.raises(ValueError, match="did you mean gcn-cora") as caught:
        task("gcn-corra")
    assert all(name in str(caught.value) for name in TASKS)
    with pytest.raises(ValueError, match="no field 'sparcity'; did you mean sparsity") as caught:
        task("digits", sparcity=0.5)
    assert all(field.name in str(caught.value) for field in dataclasses.fields(Run))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sparsity": 0.0}, "sparsity is a fraction between 0 and 1, got 0.0"),
        ({"sparsity": 1.0}, "sparsity is a fraction"),
        ({"sparsity": float("nan")}, "sparsity is a fraction"),
        ({"epochs": 0}, "epochs is above 0, got 0"),
        ({"steps": 0}, "steps is above 0, got 0"),
        ({"width": -1}, "width is above 0, got -1"),
        ({"lr": float("nan")}, "lr is above 0, got nan"),
        ({"epochs_scale": 0}, "epochs_scale is above 0"),
        ({"fine_tune": -1}, "fine_tune is from 0 on, got -1"),
        ({"extra_epochs": -1}, "extra_epochs is from 0 on"),
        ({"weight_decay": -1e-4}, "weight_decay is from 0 on"),
        ({"seed": -1}, "seed is a whole number"),
        ({"seed": 2**32}, "seed is a whole number"),
        ({"method": "liu"}, "--structure channels"),
        ({"method": "swd"}, "pass --a-min and --a-max"),
        ({"method": "growing_decay", "a_min": 1.0}, "pass --a-min and --a-max"),
    ],
)
def test_wrong_values(fields, message):
    with pytest.raises(ValueError, match=message):
        Run(**fields)


def test_the_network_depends_on_the_seed_alone(same_bits):
    one = Run(seed=5).build_model(10)
    torch.rand(3)
    same_bits(one, Run(seed=5, method="gmp", epochs=3).build_model(10))
    assert not torch.equal(one.conv1.weight, Run(seed=6).build_model(10).conv1.weight)


def test_the_network_has_the_width_and_the_stem_of_its_task():
    assert task("resnet20-16-cifar10").build_model(10).fc.in_features == 64
    assert task("resnet20-cifar10").build_model(10).fc.in_features == 256
    first = next(task("resnet50-imagenet", width=8).build_model(10).parameters())
    assert first.shape[-1] == 7
    with pytest.raises(ValueError, match="lenet5 has no width to choose, got 8"):
        Run(model="lenet5", data="mnist", width=8).build_model(10)


def test_validation_holds_out_a_part_of_the_training_data():
    whole, held_out = Run().build_data(), Run(validation=True).build_data()
    assert len(held_out.train_y) + len(held_out.test_y) == len(whole.train_y)


def test_missing_data_says_what_to_place_where(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FADEOUT_DATA", raising=False)
    monkeypatch.setattr("fadeout.experiments.data.download.fetch", _no_network)
    with pytest.raises(ValueError, match="place train-images-idx3-ubyte") as caught:
        Run(data="mnist", model="lenet5").build_data(tmp_path / "mine")
    assert str(tmp_path / "mine" / "MNIST" / "raw") in str(caught.value)


def _no_network(*arguments):
    from fadeout.experiments.data.download import DownloadError

    raise DownloadError("no network")


# Tasks ----------------------------------------------------------------------------------------------------


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
