"""Files of the version before are read as they were written: states, masks, networks, folders of runs.

``support/make_fixtures.py`` made them. Weights are compared to the last bit, where the numbers can be the
same: with another PyTorch, or on another kind of processor, up to rounding.
"""

import json
import lzma
import shutil

import pytest
import torch
from support.compatibility import FIXTURES, NETWORKS, PRUNERS, RUNS, Training, digest, execute, output
from support.helpers import same

import fadeout
from fadeout.methods.slimming import Slimming

MADE = json.loads((FIXTURES / "made.json").read_text())
ALIKE = {"torch": torch.__version__, "capability": torch.backends.cpu.get_cpu_capability()} == MADE
CONDITIONS = ("version", "seconds", "commit", "versions", "machine")


def equal(mine, theirs):
    if ALIKE:
        same(mine, theirs)
    else:
        torch.testing.assert_close(mine, theirs)


# Pruners --------------------------------------------------------------------------------------------------


@pytest.fixture(params=PRUNERS)
def training(request):
    """A training anew, and what the old version saved in its middle and came to in the end."""
    return Training(request.param), torch.load(
        FIXTURES / "pruners" / f"{request.param}.pt", weights_only=True
    )


def test_a_training_goes_on_from_the_old_state_to_the_same_weights(training):
    mine, old = training
    mine.load(old.pop("state"))
    mine.train(mine.saved, mine.steps)
    equal(_detached(mine.end()), _detached(old))


def test_a_state_has_the_same_parts_and_values_as_the_old_one(training):
    mine, old = training
    mine.train(0, mine.saved)
    kind = (lambda state: state) if ALIKE else _shapes
    state = dict(old["state"])
    if isinstance(mine.pruner, Slimming):  # it had a pretended target, and the scores that go with one
        state["pruner"] = {k: v for k, v in state["pruner"].items() if k not in ("sparsity", "scores")}
    now = mine.state()
    for since in ("structure", "made_of"):  # what LAMP took from each layer, and the choice itself
        now["pruner"].pop(since, None)
    same(kind(now), kind(state))


def _detached(parts):
    return {part: {name: tensor.detach() for name, tensor in found.items()} for part, found in parts.items()}


def _shapes(state):
    if isinstance(state, dict):
        return {key: _shapes(value) for key, value in state.items()}
    return (state.dtype, state.shape) if isinstance(state, torch.Tensor) else type(state)


# Networks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_read_and_gives_the_same(name):
    model = fadeout.load(FIXTURES / "networks" / f"{name}.safetensors", NETWORKS[name][0])
    wanted = torch.load(FIXTURES / "networks" / f"{name}.output.pt", weights_only=True)
    if ALIKE:
        assert torch.equal(output(name, model), wanted)
    else:
        torch.testing.assert_close(output(name, model), wanted)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_written_byte_by_byte_as_before(tmp_path, name):
    old = FIXTURES / "networks" / f"{name}.safetensors"
    fadeout.save(fadeout.load(old, NETWORKS[name][0]), tmp_path / "new")
    assert (tmp_path / "new").read_bytes() == old.read_bytes()


def test_masks_are_read_as_before_and_written_with_a_checksum(tmp_path):
    old = FIXTURES / "networks" / "masks.safetensors"
    masks = fadeout.Masks.load(old)
    assert {name: (tuple(mask.shape), mask.dtype) for name, mask in masks.items()} == {
        "0.weight": ((9, 12), torch.bool),
        "2.weight": ((4, 9), torch.bool),
    }
    assert masks.sparsity == 0.75
    masks.save(tmp_path / "new")
    assert b"checksum" in (tmp_path / "new").read_bytes()
    assert b"checksum" not in old.read_bytes()
    same(dict(fadeout.Masks.load(tmp_path / "new")), dict(masks))


# Runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_was_stopped_goes_on_to_the_same_result(tmp_path, name):
    run, old = RUNS[name][0], FIXTURES / "experiments" / name
    wanted = json.loads((old / "result.json").read_text())
    folder = tmp_path / run.hash
    shutil.copytree(old / wanted["hash"], folder)
    (folder / "checkpoint").write_bytes(lzma.decompress((folder / "checkpoint.xz").read_bytes()))
    (folder / "checkpoint.xz").unlink()
    record = execute(run, tmp_path)
    weights = wanted.pop("weights")
    wanted |= {"hash": run.hash, "run": {**wanted["run"], "method": run.method}}
    assert record.keys() == {*wanted, "overlap"}  # the kept set at each test is noted since
    assert json.loads((folder / "config.json").read_text())["run"] == wanted["run"]
    lines, before = ((place / "metrics.jsonl").read_text().splitlines() for place in (folder, old))
    if ALIKE:
        assert {k: v for k, v in record.items() if k not in (*CONDITIONS, "overlap")} == {
            k: v for k, v in wanted.items() if k not in CONDITIONS
        }
        assert lines == before
        assert digest(folder) == weights
    else:
        assert record["run"] == wanted["run"]
        assert [json.loads(line).keys() for line in lines] == [json.loads(line).keys() for line in before]
