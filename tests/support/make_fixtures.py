"""Write tests/fixtures, which test_compatibility.py reads, with a version of which files are to be kept.

Those that are committed were made with commit 51e533a, the last before the modules moved into folders:

    git worktree add /tmp/before 51e533a
    PYTHONPATH=/tmp/before/src:tests python tests/support/make_fixtures.py

Everything here is public, so any version can make them. They are made anew only when a format gets a new
version, and then beside the old ones, which must still be read.
"""

import os

os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"  # as in conftest.py

import copy
import json
import lzma
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from support.compatibility import (
    FIXTURES,
    NETWORKS,
    PRUNERS,
    RUNS,
    Residual,
    Training,
    digest,
    execute,
    fixed,
    given,
    output,
    stop_after,
)
from torch import nn

import fadeout


def make_pruners(folder: Path) -> None:
    """Each training in the middle, and what the undisturbed one came to."""
    for name in PRUNERS:
        training = Training(name)
        training.train(0, training.saved)
        state = copy.deepcopy(training.state())
        assert name.startswith("bfloat16") == any(state["pruner"].get("pending", {}).values()), name
        training.train(training.saved, training.steps)
        torch.save({"state": state, **training.end()}, folder / f"{name}.pt")


@torch.no_grad()
def make_networks(folder: Path) -> None:
    """A file of each network, what it gives, and masks."""
    sizes = {}
    for name, (build, _) in NETWORKS.items():
        torch.manual_seed(0)
        model = build().eval()
        for parameter in model.parameters():
            parameter.copy_(fixed(*parameter.shape) / parameter[0].numel() ** 0.5)
        model = _prune(name, model)
        fadeout.save(model, folder / f"{name}.safetensors")
        sizes[name] = sum(parameter.numel() for parameter in model.parameters())
        torch.save(output(name, model), folder / f"{name}.output.pt")
    assert max(sizes["compact-twice"], sizes["for-inference"]) < sizes["compact"]
    model = nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 4))
    for parameter in model.parameters():
        parameter.copy_(fixed(*parameter.shape))
    fadeout.methods.one_shot(model, 0.75).save(folder / "masks.safetensors")


def _prune(name: str, model: Any) -> nn.Module:
    if name == "sparse":
        fadeout.methods.one_shot(model, 0.98)
    if name == "bfloat16":
        fadeout.methods.one_shot(model, 0.9)
    if name == "attention":
        attention = model.attention
        attention.in_proj_weight[8:10], attention.in_proj_weight[14:16] = 0, 0  # keys, values of head 1
        attention.in_proj_bias[8:10], attention.in_proj_bias[14:16] = 0, 0
    if name == "vit":
        block = model.blocks[0]
        for layer in (block.attention.q, block.attention.k, block.attention.v):
            layer.weight[4:8], layer.bias[4:8] = 0, 0
        block.fc1.weight[::3], block.fc1.bias[::3] = 0, 0
    if name not in ("compact", "compact-twice", "for-inference", "attention", "vit"):
        return model
    if isinstance(model, Residual):
        _kill(model, 3)
        model.block[0].weight[2, model.stem[1].weight != 0] = (
            0  # constant, after a batch-norm in evaluation mode alone
        )
    small = fadeout.compact(model, given(name), for_inference=name == "for-inference")
    if name == "compact-twice":
        _kill(small, 4)
        small = fadeout.compact(small, given(name))
    return small


def _kill(model: Any, nth: int) -> None:
    """Zero other channels of each batch-norm, so that the sides of additions keep different ones."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for number, norm in enumerate(norms):
        norm.running_mean.copy_(fixed(len(norm.weight)) / 10)
        norm.weight[number % nth :: nth] = 0
        norm.bias[number % nth :: nth] = 0 if number % 2 else 0.25


def make_runs(folder: Path) -> None:
    """The folder of each run, stopped in the middle, and the result that it came to from there."""
    with tempfile.TemporaryDirectory() as temporary:
        for name, (run, step) in RUNS.items():
            stop_after(run, step, folder / name)
            stopped, going_on = folder / name / run.hash, Path(temporary) / run.hash
            (stopped / "lock").unlink()
            _coarsen(stopped / "checkpoint")
            shutil.copytree(stopped, going_on)
            record = {**execute(run, temporary), "weights": digest(going_on)}
            (folder / name / "result.json").write_text(json.dumps(record, indent=1) + "\n")
            shutil.copy(going_on / "metrics.jsonl", folder / name)
            (stopped / "checkpoint.xz").write_bytes(lzma.compress((stopped / "checkpoint").read_bytes()))
            (stopped / "checkpoint").unlink()


def _coarsen(path: Path) -> None:
    """Round all weights and momenta of a checkpoint to three bits, so that the file can be packed well."""
    state = torch.load(path, weights_only=True)
    momenta = [part["momentum_buffer"] for part in state["optimizer"]["state"].values()]
    for tensor in [*state["model"].values(), *momenta]:
        if tensor.is_floating_point():
            mantissa, exponent = torch.frexp(tensor)
            tensor.copy_(torch.ldexp((mantissa * 8).round() / 8, exponent))
    torch.save(state, path)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for make in (make_pruners, make_networks, make_runs):
        folder = FIXTURES / make.__name__.removeprefix("make_").replace("runs", "experiments")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make(folder)
    made = {"torch": torch.__version__, "capability": torch.backends.cpu.get_cpu_capability()}
    (FIXTURES / "made.json").write_text(json.dumps(made) + "\n")
