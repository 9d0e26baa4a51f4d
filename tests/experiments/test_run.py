"""What a run is: its hash, its fields, what it checks."""

import dataclasses
from pathlib import Path

import pytest

from fadeout.experiments.disk.record_file import read_records
from fadeout.experiments.run import DATA, MODELS, Run
from fadeout.experiments.tasks import task
from fadeout.methods.registry import METHODS


def test_hashes_stay_so_that_old_results_are_found():
    assert Run().hash == "44136fa355b3"
    assert task("digits", method="gmp", seed=3).hash == "35283b42ed58"
    assert task("gcn-cora", method="han", sparsity=0.99).hash == "0a9642f93bf6"
    assert task("gcn-cora", method="swd", sparsity=0.99).hash == "e05eebc726fb"
    assert task("lenet5-mnist", method="swd", a_min=1e-4, a_max=1e1, epochs_scale=0.1).hash == "c78c2d72148f"
    assert task("resnet20-cifar10", structure="channels", min_channels=0).hash == "b980f7235a49"


@pytest.mark.parametrize(
    ("name", "changes", "wanted"),
    [
        ("digits", {}, "44136fa355b3"),
        ("digits", {"method": "han", "rounds": 3}, "32e78951fd81"),
        ("digits", {"method": "auto", "soft": True, "extra_epochs": 2, "validation": True}, "d0eb4761685b"),
        ("lenet5-mnist", {"method": "auto"}, "5041b4bc595f"),
        ("lenet5-mnist", {"method": "swd", "mu": 1}, "14173516cc92"),
        ("resnet20-cifar10", {"method": "rewinding", "smooth_l1": 1}, "7aa90c6bee97"),
        (
            "resnet20-16-cifar10",
            {"method": "liu", "structure": "channels", "preset": "authors"},
            "f14dd1934a4e",
        ),
        ("resnet18-cifar10", {"method": "swd", "a_min": 1, "a_max": 10}, "2ad19a756d6a"),
        ("resnet34-cifar100", {"method": "gmp", "width": 8}, "5f8212773c16"),
        ("resnet50-imagenet", {"method": "liu", "structure": "channels"}, "e46c733239c4"),
        ("resnet50-imagenet", {"method": "growing_decay", "steps": 10, "compile": True}, "76aa6dc1cb20"),
        ("gcn-cora", {"method": "one_shot", "sparsity": 0.5}, "7bfd64489ad6"),
        ("gcn-cora", {"method": "dense", "epochs_scale": 0.5, "evaluate_every": 10}, "21e731d33d8b"),
    ],
)
def test_hashes_of_single_runs_stay(name, changes, wanted):
    assert task(name, **changes).hash == wanted


FIRST_FIELDS = (
    "data model width method structure sparsity seed epochs batch_size optimizer lr momentum weight_decay "
    "learning_rates a_min a_max mu rounds fine_tune last_fine_tune smooth_l1 soft extra_epochs min_channels "
    "preset validation epochs_scale steps compile evaluate_every"
)


def test_records_have_the_fields_of_the_first_version_and_later_ones_where_they_say_something():
    assert sorted(Run().to_dict()) == sorted(FIRST_FIELDS.split())
    assert set(Run(norm=False, criterion="lamp").to_dict()) == {*FIRST_FIELDS.split(), "norm", "criterion"}
    assert Run(**Run(norm=False, method="han", fine_tune_lr=1).to_dict()) == Run(
        norm=False, method="han", fine_tune_lr=1.0
    )


def test_records_of_earlier_versions_are_runs():
    records = [
        record
        for path in (Path(__file__).parents[2] / "results" / "experiments").glob("*.jsonl")
        for record in read_records(path).values()
    ]
    assert len(records) > 100
    for record in records:
        run = Run(**record["run"])
        assert run.hash == record["hash"]
        assert run.to_dict() == {"compile": False, **record["run"]}  # which the first records lack


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
        ({"epochs_scale": float("inf")}, "epochs_scale is a finite number, got inf"),
        ({"epochs_scale": 1e300}, "at most 1,000,000,000 epochs"),
        ({"weight_decay": float("inf")}, "weight_decay is a finite number"),
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
