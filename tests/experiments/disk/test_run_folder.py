"""The folder of a run: under which conditions it came about, and a training that several runs share."""

import shutil
from dataclasses import replace

import pytest
import torch

from fadeout.experiments.disk.run_folder import conditions, share_training
from fadeout.experiments.execute import execute
from fadeout.experiments.run import Run

DENSE = Run(method="dense", epochs=2, steps=3, fine_tune=1, last_fine_tune=1, rounds=2)


def test_the_commit_is_that_of_the_source_or_none(monkeypatch, tmp_path):
    assert set(conditions()) == {"commit", "versions", "machine"}
    monkeypatch.setattr("fadeout.experiments.disk.run_folder.__file__", str(tmp_path / "run_folder.py"))
    assert conditions()["commit"] is None


@pytest.mark.parametrize("method", ["one_shot", "han", "rewinding"])
def test_a_shared_training_changes_nothing(tmp_path, method):
    run = replace(DENSE, method=method, sparsity=0.8)
    execute(DENSE, tmp_path / "shared")
    assert share_training(run, DENSE, tmp_path / "shared")
    steps = []
    found = execute(run, tmp_path / "shared", watch=lambda now: steps.append(now["step"]))
    assert steps == list(range(7, 7 + len(steps)))
    wanted = execute(run, tmp_path / "alone")
    assert {**found, "seconds": 0} == {**wanted, "seconds": 0}
    one, other = (tmp_path / name / run.hash for name in ("shared", "alone"))
    assert (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    mine, theirs = (torch.load(folder / "checkpoint")["model"] for folder in (one, other))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert not share_training(run, DENSE, tmp_path / "shared")  # it has begun by itself


@pytest.mark.parametrize(
    "changes",
    [{"method": "gmp"}, {"seed": 1}, {"lr": 0.2}, {"epochs": 3}, {"soft": True}, {"norm": False}],
)
def test_another_training_is_not_shared(tmp_path, changes):
    execute(DENSE, tmp_path)
    run = replace(DENSE, **{"method": "one_shot", **changes})
    assert not share_training(run, DENSE, tmp_path)
    assert not (tmp_path / run.hash).exists()
    shutil.rmtree(tmp_path / DENSE.hash)
    assert not share_training(replace(DENSE, method="one_shot"), DENSE, tmp_path)
