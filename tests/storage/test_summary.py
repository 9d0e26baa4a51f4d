"""What a file tells of itself, compared with the network that was saved."""

import itertools

import pytest
import torch
from support.helpers import conv, kill, size
from support.structured import Residual
from torch import nn

import fadeout
from fadeout.storage.summary import summarize


def by_name(found):
    return {layer.name: layer for layer in found.layers}


def test_a_network_as_it_was_built(tmp_path):
    model = nn.Sequential(conv(3, 4, 3, bias=False), nn.BatchNorm2d(4), *(nn.Identity() for _ in range(9)))
    model.append(nn.Linear(4, 2))
    kill(model[0], channels=[0])
    fadeout.save(model, tmp_path / "model.safetensors")
    found = summarize(tmp_path / "model.safetensors")
    assert [layer.name for layer in found.layers] == ["0", "1", "11"]  # by number
    convolution, norm, linear = found.layers
    assert convolution.tensors == ["weight 4x3x3x3"]
    assert (convolution.parameters, convolution.nonzero, convolution.bytes) == (108, 81, 432)
    assert 81 * 4 < convolution.stored < 108 * 4
    assert norm.tensors[:2] == ["bias 4", "weight 4"]
    assert norm.tensors[2:] == ["running_mean 4", "running_var 4", "num_batches_tracked scalar"]
    assert norm.types == ["float32", "int64"]
    assert norm.parameters == 8  # the statistics are none
    assert linear.tensors == ["weight 2x4", "bias 2"]
    assert found.total.parameters == size(model)
    assert found.total.nonzero == sum(int(p.count_nonzero()) for p in model.parameters())
    assert found.total.bytes == sum(t.nbytes for t in model.state_dict().values())
    assert found.file_bytes == (tmp_path / "model.safetensors").stat().st_size
    assert "not compact" in str(found)


def test_a_compact_network_says_what_it_was(tmp_path):
    model = Residual()
    kill(model.bn1, channels=[0])
    kill(model.bn2, channels=[1, 2])
    kill(model.bn3, channels=[3])
    small = fadeout.compact(model, torch.zeros(2, 3, 6, 6))
    fadeout.save(small, tmp_path / "small.safetensors")
    found = summarize(tmp_path / "small.safetensors")
    assert by_name(found)["conv2"].tensors == ["weight 4x5x3x3 (was 6x6x3x3)"]
    assert by_name(found)["fc"].tensors == ["weight 3x6", "bias 3"]  # whole
    assert found.total.parameters == size(small)
    text = str(found)
    assert "compact: cut for inputs of 2x3x6x6 float32" in text
    assert f"{size(model):,} parameters -> {size(small):,}" in text


def test_biases_that_came_into_being_and_additions_alike(tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2, bias=False))
    kill(model[0], channels=[0])
    fadeout.save(fadeout.compact(model, torch.zeros(1, 3), couple=True), tmp_path / "small.safetensors")
    found = summarize(tmp_path / "small.safetensors")
    assert by_name(found)["2"].tensors == ["weight 2x3 (was 2x4)", "bias 2"]
    text = str(found)
    assert "constants stand in for channels, 1 biases added, both sides of additions alike" in text


def test_a_network_that_was_cut_twice(tmp_path):
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    sizes = [size(model)]
    for channels in ([0, 1], [0]):
        kill(model[0], channels=channels)
        model = fadeout.compact(model, torch.zeros(1, 3))
        sizes.append(size(model))
    fadeout.save(model, tmp_path / "small.safetensors")
    found = summarize(tmp_path / "small.safetensors")
    assert by_name(found)["0"].tensors == ["weight 5x3 (was 8x3)", "bias 5 (was 8)"]
    for before, after in itertools.pairwise(sizes):
        assert f"{before:,} parameters -> {after:,}" in str(found)


def test_tied_tensors_count_once(tmp_path):
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    fadeout.save(model, tmp_path / "model.safetensors")
    found = summarize(tmp_path / "model.safetensors")
    assert found.total.parameters == size(model)
    assert by_name(found)["b"].tensors[0] == "weight 3x3 = a.weight"


def test_altered_files_are_named(tmp_path):
    path = tmp_path / "model.safetensors"
    fadeout.save(nn.Linear(3, 3), path)
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(ValueError, match="altered, the checksum differs"):
        summarize(path)
