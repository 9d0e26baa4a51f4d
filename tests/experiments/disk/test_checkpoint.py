"""The checkpoint of a run: two generations, each of which knows its run and its metrics."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from support.helpers import same

from fadeout.experiments.disk.checkpoint import read_checkpoint
from fadeout.experiments.execute import Stopped, execute
from fadeout.experiments.run import Run

SMALL = Run(method="gmp", epochs=2, steps=3)


def stopped(run, results, step):
    """The folder of a run that has saved after every step up to this one."""
    steps = iter(range(1, step + 1))
    with pytest.raises(Stopped):
        execute(run, results, checkpoint_every=0, stop=lambda: next(steps) == step)
    return results / run.hash


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What the run leaves where nothing disturbs it."""
    results = tmp_path_factory.mktemp("whole")
    execute(SMALL, results)
    return outcome(results / SMALL.hash)


def outcome(folder):
    record, state = json.loads((folder / "result.json").read_text()), torch.load(folder / "checkpoint")
    changing = [record.pop("seconds"), record.pop("checksum"), state.pop("seconds")]
    assert all(number > 0 for number in changing)
    return record, state, (folder / "metrics.jsonl").read_text()


def spoil(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_one_falls_back_to_the_one_before_and_says_so(tmp_path, whole):
    folder = stopped(SMALL, tmp_path, 4)
    spoil(folder / "checkpoint")
    damaged, seen = (folder / "checkpoint").read_bytes(), []
    with pytest.warns(
        UserWarning, match=r"checkpoint cannot be read \(its checksum differs\): it is kept as "
    ):
        execute(SMALL, tmp_path, watch=lambda now: seen.append(now["step"]))
    assert seen == [4, 5, 6]  # and not 5, as it would from the last
    assert (folder / "checkpoint.refused").read_bytes() == damaged
    assert not (folder / "checkpoint.before").exists()
    same(outcome(folder), whole)


def test_without_the_last_one_the_one_before_is_taken(tmp_path, whole):
    """As where a process dies between two moves."""
    folder = stopped(SMALL, tmp_path, 4)
    (folder / "checkpoint").unlink()
    execute(SMALL, tmp_path)
    same(outcome(folder), whole)


def test_two_damaged_ones_are_refused(tmp_path):
    folder = stopped(SMALL, tmp_path, 4)
    spoil(folder / "checkpoint")
    spoil(folder / "checkpoint.before")
    with pytest.raises(ValueError, match=r"cannot be read .*: restore a copy, or remove the folder"):
        execute(SMALL, tmp_path)


def test_the_checkpoint_of_another_seed_is_refused(tmp_path):
    folder = stopped(SMALL, tmp_path, 4)
    other = stopped(replace(SMALL, seed=1), tmp_path, 2)
    for name in ("checkpoint", "checkpoint.before"):
        shutil.copy(other / name, folder / name)
    with pytest.raises(ValueError, match=f"it is of another run, {other.name}"):
        execute(SMALL, tmp_path)


@pytest.mark.parametrize("left", [0, 10, None])
def test_metrics_that_lack_something_are_never_padded(tmp_path, whole, left):
    folder = stopped(SMALL, tmp_path, 5)
    metrics = folder / "metrics.jsonl"
    content = metrics.read_bytes()
    metrics.unlink() if left is None else metrics.write_bytes(content[:left])
    with pytest.raises(ValueError, match=rf"has {left or 0} bytes, and had {len(content)} when"):
        execute(SMALL, tmp_path)
    metrics.write_bytes(content)
    execute(SMALL, tmp_path)
    same(outcome(folder), whole)


def test_metrics_that_were_altered(tmp_path):
    folder = stopped(SMALL, tmp_path, 5)
    spoil(folder / "metrics.jsonl")
    with pytest.raises(ValueError, match=r"metrics.jsonl was altered"):
        execute(SMALL, tmp_path)


def test_metrics_that_the_last_one_does_not_fit_but_the_one_before_does(tmp_path, whole):
    folder = stopped(SMALL, tmp_path, 3)  # the third step ends an epoch
    (folder / "metrics.jsonl").write_text("")
    with pytest.warns(UserWarning, match="metrics.jsonl has 0 bytes"):
        execute(SMALL, tmp_path)
    same(outcome(folder), whole)


def test_one_of_the_version_before_is_checked_by_the_sums_that_torch_writes(tmp_path):
    folder = stopped(SMALL, tmp_path, 2)
    (folder / "checkpoint.before").unlink()
    path = folder / "checkpoint"
    state = {k: v for k, v in torch.load(path).items() if k not in ("run", "metrics_checksum")}
    torch.save(state, path)
    same(read_checkpoint(folder), state)
    content = path.read_bytes()
    weight = max(state["model"].values(), key=lambda tensor: tensor.numel())
    place = content.index(weight.numpy().tobytes()[:64])
    path.write_bytes(content[:place] + bytes(8) + content[place + 8 :])
    with pytest.raises(ValueError, match="is damaged"):
        read_checkpoint(folder)


def test_something_else_than_a_checkpoint(tmp_path):
    folder = stopped(SMALL, tmp_path, 1)
    torch.save({"model": {}}, folder / "checkpoint")
    with pytest.raises(ValueError, match="something else than the state of a run"):
        read_checkpoint(folder)


def test_one_without_its_checksum(tmp_path):
    folder = stopped(SMALL, tmp_path, 1)
    path = folder / "checkpoint"
    path.write_bytes(path.read_bytes().replace(b"\nfadeout checkpoint", b"\nfadeout chickpoint"))
    with pytest.raises(ValueError, match="its checksum was altered"):
        read_checkpoint(folder)
