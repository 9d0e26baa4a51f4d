"""Every network of the library, half of it, a tenth of it and a hundredth of it left."""

import pytest
import torch
from support.helpers import same_outputs, size
from support.structured import IMAGES, INPUTS, WITHOUT_NORMS, bind, check_target, library, most, without

import fadeout
from fadeout import Channels

UNREACHABLE = {"vit"}  # the residual stream stays
pytestmark = [
    pytest.mark.slow,
    # in front of a depthwise convolution a channel goes only with the one behind it, and compact says so
    pytest.mark.filterwarnings("ignore:compact.. keeps .* channels? whose weights are all zero"),
]


@pytest.mark.parametrize("name", IMAGES)
def test_targets_outputs_and_files(name, tmp_path):
    model, example = library(name), torch.randn(2, *INPUTS.get(name, (3, 8, 8))).double()
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
        same_outputs(small, fadeout.load(path, lambda: library(name)), example)


@pytest.mark.parametrize("name", IMAGES)
def test_onnx(name, tmp_path):
    """The export runs the file and compares it."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, example = library(name).float(), torch.randn(2, *INPUTS.get(name, (3, 8, 8)))
    bound = bind(model, Channels(example, by="norm" if name in WITHOUT_NORMS else "scale"))
    small = fadeout.compact(without(model, bound, min(0.9, most(bound))), example)
    fadeout.export.onnx(small, tmp_path / "small.onnx", example)
    assert (tmp_path / "small.onnx").exists()
