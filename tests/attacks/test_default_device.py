"""No tensor is made on the default device by accident, and float64 only where a device has it."""

import ast
import warnings
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import fadeout

SOURCE = Path(fadeout.__file__).parent
ROOMS = ["selection", "torch_bridge", "structures", "methods", "masks.py", "criteria.py", "fades.py"]
FILES = [
    path for room in ROOMS for path in ([SOURCE / room] if "." in room else (SOURCE / room).rglob("*.py"))
]
FACTORIES = {
    *("arange", "as_tensor", "empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randint"),
    *("randn", "randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros"),
}


@cache
def calls(path: Path):
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return [(node.func, node) for node in nodes if isinstance(node.func, ast.Attribute)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_tensors_are_made_with_a_device(path):
    for function, call in calls(path):
        if ast.unparse(function.value) == "torch" and function.attr in FACTORIES:
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
            where = f"{path}:{call.lineno}: {ast.unparse(call)}"
            assert "device" in given, where
            assert given.get("dtype") != "torch.float64" or given["device"] == "'cpu'", where


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_float64_is_asked_of_a_device_that_has_it(path):
    """Only ``floats.double`` knows which one; sums over processes have no MPS."""
    asked = [call.lineno for function, call in calls(path) if function.attr == "double"]
    assert len(asked) <= (path.name in ("floats.py", "sharding.py")), f"{path}: {asked}"


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, 3),
    )


def decay(**how) -> fadeout.Fade:
    return fadeout.Decay(fadeout.schedules.exponential(1.0, 1e5), weight_decay=1e-3, **how)


FADES = {
    "progressive": fadeout.Progressive,
    "latent": fadeout.Latent,
    "gradient": lambda: decay(mode="gradient"),
    "implicit": lambda: decay(mode="implicit"),
    "smooth_l1": lambda: decay(mode="implicit", penalty="smooth_l1"),
}
STRUCTURES = {
    "elements": lambda example: fadeout.Elements(),
    "layers": lambda example: fadeout.Elements(scope="layer"),
    "channels": lambda example: fadeout.Channels(example),
    "norms": lambda example: fadeout.Channels(example, by="norm"),
}
CRITERIA = {"magnitude": fadeout.criteria.magnitude, "lamp": fadeout.criteria.lamp}


def trained(fade: str, structure: str, criterion: str, dtype: torch.dtype, default: str) -> dict:
    """The masks and weights of a small training, with a default device that the model does not use."""
    torch.manual_seed(0)
    model, example = network().to(dtype), torch.randn(4, 1, 6, 6, dtype=dtype)
    labels = torch.tensor([0, 1, 2, 0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.set_default_device(default)
    try:
        pruner = fadeout.SelectiveWeightDecay(
            model,
            optimizer,
            sparsity=0.5,
            steps=8,
            structure=STRUCTURES[structure](example[:1]),
            fade=FADES[fade](),
            criterion=CRITERIA[criterion],
        )
        fades = []
        for _ in range(8):
            optimizer.zero_grad()
            functional.cross_entropy(model(example).float(), labels).backward()
            optimizer.step()
            fades.append(pruner.fade)
        early = pruner.masks()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            masks = pruner.remove()
    finally:
        torch.set_default_device("cpu")
    return {"fades": fades, "early": dict(early), "masks": dict(masks), "weights": model.state_dict()}


CASES = [
    *((fade, structure, "magnitude", torch.float32) for fade in FADES for structure in STRUCTURES),
    *(("progressive", structure, "lamp", torch.float32) for structure in STRUCTURES),
    *((fade, "elements", "magnitude", torch.bfloat16) for fade in FADES),
]


@pytest.mark.parametrize(("fade", "structure", "criterion", "dtype"), CASES)
def test_a_training_does_not_see_the_default_device(fade, structure, criterion, dtype):
    wanted = trained(fade, structure, criterion, dtype, "cpu")
    got = trained(fade, structure, criterion, dtype, "meta")
    assert got["fades"] == wanted["fades"]
    for part in ("early", "masks", "weights"):
        assert got[part].keys() == wanted[part].keys()
        for name, tensor in wanted[part].items():
            assert got[part][name].device.type == "cpu", (part, name)
            assert torch.equal(got[part][name], tensor), (part, name)
