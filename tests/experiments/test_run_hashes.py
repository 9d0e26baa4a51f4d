"""The hashes of runs name the folders of results, so they never change.

A digest for each experiment stands for the hashes of all its runs, in their order.
"""

import hashlib

import pytest

from fadeout.experiments.catalogue import EXPERIMENTS
from fadeout.experiments.tasks import task

# experiment -> how many runs, and the digest of their hashes
DIGESTS = {
    "comparison": (11, "02301fbe133303c6"),
    "imagenet": (28, "d48ee4fa2e05b1e9"),
    "cifar10-tradeoff": (440, "06ee844f80711baa"),
    "cifar10-short": (10, "3f77d86746a6d9a9"),
    "lenet-grid": (36, "d405f942c3168907"),
    "extended-grid": (50, "58ded7a7e7119844"),
    "structured-grid": (60, "95ab7d2ee20abfef"),
    "unstructured-grids": (75, "607dbecc54e91919"),
    "structured-grids": (108, "d305e32228666668"),
    "strengths": (88, "43a321fd8370185a"),
    "cora": (430, "74c0658ee3b51e34"),
    "ablation": (12, "3681d4c2da3cfe9c"),
    "cost": (6, "0a12f21c087710e9"),
}

SINGLE = [
    ("digits", {}, "44136fa355b3"),
    ("digits", {"sparsity": 0.5, "seed": 7}, "c7d67cb6a684"),
    ("digits", {"method": "rewinding", "structure": "channels", "smooth_l1": 1e-3}, "1a004bd255fd"),
    ("lenet5-mnist", {"method": "swd", "sparsity": 0.99}, "d16147462272"),
    ("lenet5-mnist", {"method": "swd", "a_min": 1e-3, "a_max": 1e2, "preset": "authors"}, "87ef4f32cbfa"),
    ("resnet20-cifar10", {"method": "liu", "structure": "channels", "min_channels": 0}, "6fe38b5c93e8"),
    ("resnet20-16-cifar10", {"method": "gmp", "epochs": 30, "validation": True}, "31a402eb3cc3"),
    (
        "resnet20-16-cifar10",
        {"method": "rewinding", "sparsity": 0.95, "extra_epochs": 10, "soft": True},
        "00c98a37a1ba",
    ),
    (
        "resnet18-cifar10",
        {"method": "one_shot", "learning_rates": "cosine", "compile": True},
        "8f484399e909",
    ),
    ("digits", {"structure": "blocks", "rows": 8, "columns": 4}, "027f9696a355"),
    ("digits", {"structure": "nm", "sparsity": 0.5}, "4d9c722c3aa0"),
    ("resnet34-cifar100", {"method": "dense", "width": 16, "batch_size": 64}, "a6377e2c046e"),
    ("resnet50-imagenet", {"method": "swd", "structure": "channels", "sparsity": 0.5}, "431d29cfe0e6"),
    ("resnet50-imagenet", {"method": "growing_decay", "epochs_scale": 0.1, "steps": 10}, "6be65dbe047d"),
    ("gcn-cora", {"method": "han", "rounds": 3, "fine_tune": 100, "last_fine_tune": 500}, "e1eb0d97f73c"),
    (
        "gcn-cora",  # whole numbers in fields that are fractional
        {"method": "auto", "optimizer": "sgd", "lr": 1, "weight_decay": 0, "evaluate_every": 10},
        "a9adeec36b59",
    ),
]


@pytest.mark.parametrize("name", DIGESTS)
def test_an_experiment_has_the_runs_it_always_had(name):
    hashes = [run.hash for run in EXPERIMENTS[name].runs()]
    assert (len(hashes), hashlib.sha256(" ".join(hashes).encode()).hexdigest()[:16]) == DIGESTS[name]


@pytest.mark.parametrize(("name", "changes", "expected"), SINGLE)
def test_a_run_has_the_hash_it_always_had(name, changes, expected):
    assert task(name, **changes).hash == expected
