"""Every network of the library, half of it, a tenth of it and a hundredth of it left."""

import pytest
import torch
from helpers import same_outputs, size
from structured import bind, check_target, most, scatter, without
from torch import nn

import fadeout
from fadeout import Channels, models

SIZES = {
    "densenet40": {"growth": 2},
    "lenet5": {},
    "mobilenetv2": {"width_mult": 0.1},
    "smallcnn": {},
    "vit": {"image_size": 8, "dim": 12, "depth": 2},
}
INPUTS = {"lenet5": (1, 28, 28), "smallcnn": (1, 8, 8)}
WITHOUT_NORMS = {"lenet5", "smallcnn", "vit"}
UNREACHABLE = {"vit"}  # the residual stream stays
pytestmark = pytest.mark.slow


def build(name):
    torch.manual_seed(0)
    model = scatter(getattr(models, name)(**SIZES.get(name, {"width": 4})))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # outputs are compared in training mode too
    return model.double()


@pytest.mark.parametrize("name", models.__all__)
def test_targets_outputs_and_files(name, tmp_path):
    model, example = build(name), torch.randn(2, *INPUTS.get(name, (3, 8, 8))).double()
    structure = Channels(example, by="norm" if name in WITHOUT_NORMS else "scale")
    bound = bind(model, structure)
    largest = most(bound)
    assert (largest < 0.9) == (name in UNREACHABLE)
    for sparsity in (0.5, 0.9, 0.99):
        if sparsity > largest:
            with pytest.raises(ValueError, match=f"at most {largest:g} can go"):
                bound.check(sparsity)
            sparsity = largest
        check_target(model, structure, sparsity, bound=bound)
        pruned = without(model, bound, sparsity)
        small = fadeout.compact(pruned, example)
        assert size(small) <= (1 - sparsity) * size(model)
        for training in (True, False):
            same_outputs(pruned, small, example, training=training)
        path = tmp_path / "small.safetensors"
        fadeout.save(small, path)
        same_outputs(small, fadeout.load(path, lambda: build(name)), example)


@pytest.mark.parametrize("name", models.__all__)
def test_onnx(name, tmp_path):
    """The export runs the file and compares it."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, example = build(name).float(), torch.randn(2, *INPUTS.get(name, (3, 8, 8)))
    bound = bind(model, Channels(example, by="norm" if name in WITHOUT_NORMS else "scale"))
    small = fadeout.compact(without(model, bound, min(0.9, most(bound))), example)
    fadeout.export.onnx(small, tmp_path / "small.onnx", example)
    assert (tmp_path / "small.onnx").exists()
