"""Damaged files of every kind that is written are refused, or read as if nothing had happened."""

import json
import warnings

import pytest
import torch
from support.damage import attack
from support.helpers import same as assert_same
from torch import nn

import fadeout
from fadeout.compaction.plan import plans_of
from fadeout.experiments.disk.checkpoint import append_metrics, read_checkpoint, write_checkpoint
from fadeout.experiments.disk.record_file import read_record, read_records, write_record, write_records
from fadeout.storage.network_file import File

FEW, MANY = 40, 1000

counts = pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])


def equal(mine, theirs):
    try:
        assert_same(mine, theirs)
    except AssertionError:
        return False
    return True


def build():
    return nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 40), nn.Sigmoid(), nn.Linear(40, 3))


@pytest.fixture(scope="module")
def network():
    """A sparse network, of which some channels are gone."""
    torch.manual_seed(0)
    model = build()
    with torch.no_grad():
        model[0].weight[5:15], model[0].bias[5:15] = 0, 0
        model[2].weight[torch.rand(40, 40) < 0.9] = 0
    return fadeout.compact(model, torch.zeros(1, 12))


@counts
def test_networks(tmp_path, network, count):
    path, wanted = tmp_path / "network.safetensors", network.state_dict()
    fadeout.save(network, path)
    attack(path, lambda: fadeout.load(path, build), lambda found: equal(found.state_dict(), wanted), count)


@counts
def test_plans(tmp_path, network, count):
    path, wanted = tmp_path / "network.safetensors", plans_of(network)
    fadeout.save(network, path)
    content = path.read_bytes()
    start = content.index(rb"\"plans\":")
    part = slice(start, content.index(rb"\"tensors\":", start))
    outcome = attack(path, lambda: File.read(path).plans, lambda found: found == wanted, count, part=part)
    assert outcome["refused"] == count  # there is nothing in a plan that says nothing


@counts
def test_masks(tmp_path, count):
    path, generator = tmp_path / "masks.safetensors", torch.Generator().manual_seed(0)
    shapes = {"0.weight": (40, 12), "2.weight": (60, 40), "4.weight": (3, 60), "empty": (0, 4)}
    masks = {name: torch.rand(*shape, generator=generator) < 0.2 for name, shape in shapes.items()}
    fadeout.Masks(masks).save(path)
    attack(path, lambda: fadeout.Masks.load(path), lambda found: equal(dict(found), masks), count)


# Runs -----------------------------------------------------------------------------------------------------


def record(number):
    numbers = {"before": 91.25, "removed": 91.2, "after": 90.0 + number / 7, "seconds": 12.5}
    run = {"method": "gmp", "sparsity": 0.9, "seed": number}
    return {"version": 2, "hash": f"{number:012x}", "status": "done", "run": run, **numbers}


@counts
def test_results(tmp_path, count):
    path = tmp_path / "result.json"
    write_record(path, record(3))
    attack(path, lambda: read_record(path), lambda found: found == record(3), count)


@counts
def test_records(tmp_path, count):
    path, wanted = tmp_path / "cora.jsonl", [record(number) for number in range(30)]
    write_records(path, wanted)

    def in_any_order(found):
        return sorted(map(json.dumps, found.values())) == sorted(map(json.dumps, wanted))

    attack(path, lambda: read_records(path), in_any_order, count)


def state(step):
    generator = torch.Generator().manual_seed(step)
    weights = {f"{n}.weight": torch.randn(40, 40, generator=generator) for n in range(3)}
    parts = {"optimizer": {"state": {0: {"momentum": weights["0.weight"] / 2}}}, "pruner": {"steps": step}}
    figures = {"top1": 91.5, "losses": [0.5] * step}
    rest = {"phase": 0, "epoch": step, "step": 3, "masks": {}, "figures": figures, "seconds": 1.5}
    return {"model": weights, **parts, **rest, "losses": [], "scheduler": None, "worlds": ["one process"]}


@pytest.fixture
def folder(tmp_path):
    """A run with two generations of checkpoints, of epochs 1 and 2, and a line of metrics in each epoch."""
    folder = tmp_path / "0123456789ab"
    folder.mkdir()
    for epoch in (1, 2):
        append_metrics(folder, {"epoch": epoch, "loss": 0.1 * epoch, "top1": 90.0 + epoch})
        write_checkpoint(folder, state(epoch))
    return folder


def without_metrics(found):
    return {name: value for name, value in found.items() if name in state(1)}


@counts
def test_checkpoints(folder, count):
    path = folder / "checkpoint"
    (folder / "checkpoint.before").unlink()
    read = lambda: without_metrics(read_checkpoint(folder))  # noqa: E731
    attack(path, read, lambda found: equal(found, state(2)), count)


@counts
def test_checkpoints_with_one_before(folder, count):
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    fallen = 0

    def read():
        nonlocal fallen
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = without_metrics(read_checkpoint(folder))
        assert found["epoch"] == 2 - len(said)
        if said:
            fallen += 1
            assert "goes on from the checkpoint before it, in epoch 2" in str(said[0].message)
            assert len((folder / "metrics.jsonl").read_text().splitlines()) == 1
            (folder / "checkpoint.refused").unlink()
        for name in ("checkpoint.before", "metrics.jsonl"):
            (folder / name).write_bytes(kept[name])
        return found

    outcome = attack(folder / "checkpoint", read, lambda found: equal(found, state(found["epoch"])), count)
    assert outcome["same"] == count
    assert fallen > count / 2


@counts
def test_metrics(folder, count):
    path = folder / "metrics.jsonl"
    content, last = path.read_bytes(), (folder / "checkpoint").read_bytes()

    def read():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = read_checkpoint(folder)
        left = path.read_bytes()
        (folder / "checkpoint").write_bytes(last)
        return found["epoch"], left

    def same(found):
        epoch, left = found  # as it was, up to the line of that epoch
        return left == b"".join(content.splitlines(keepends=True)[:epoch])

    attack(path, read, same, count)
