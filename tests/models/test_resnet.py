"""Residual networks: sizes known from publications or worked out by hand, forward passes, traces."""

import re

import pytest
import torch
from support.models import check_training_and_trace, conv, norm, on_meta, size
from torch import nn

from fadeout import models
from fadeout.models.resnet import zero_branches

DEPTHS = (18, 20, 32, 34, 44, 50, 56, 101, 110, 152)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("resnet152", 60_192_808),
    ],
)
def test_usual_resnets_have_their_published_size(name, parameters):
    assert size(on_meta(name, 1000, stem="imagenet", post_norm=False)) == parameters


@pytest.mark.parametrize(("width", "parameters"), [(16, 273_146), (64, 4_330_442)])
def test_resnet20_by_hand(width, parameters):
    w = width
    stem = conv(3, w, 3) + norm(w)
    first = 6 * conv(w, w, 3) + 9 * norm(w)
    second = conv(w, 2 * w, 3) + 5 * conv(2 * w, 2 * w, 3) + 9 * norm(2 * w)
    third = conv(2 * w, 4 * w, 3) + 5 * conv(4 * w, 4 * w, 3) + 9 * norm(4 * w)
    shortcuts = conv(w, 2 * w, 1) + norm(2 * w) + conv(2 * w, 4 * w, 1) + norm(4 * w)
    dense = 4 * w * 10 + 10
    assert (
        size(on_meta("resnet20", width=w)) == stem + first + second + third + shortcuts + dense == parameters
    )


def test_resnet18_by_hand():
    total = conv(3, 64, 3) + norm(64) + 512 * 10 + 10
    total += 4 * conv(64, 64, 3) + 6 * norm(64)
    for maps in (128, 256, 512):
        total += conv(maps // 2, maps, 3) + 3 * conv(maps, maps, 3) + 6 * norm(maps)
        total += conv(maps // 2, maps, 1) + norm(maps)
    assert size(on_meta("resnet18")) == total == 11_177_802


def test_resnet50_by_hand():
    total = conv(3, 64, 3) + norm(64) + 2048 * 10 + 10
    inputs = 64
    for maps, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        outputs = 4 * maps
        total += conv(inputs, maps, 1) + (blocks - 1) * conv(outputs, maps, 1) + blocks * norm(maps)
        total += blocks * (conv(maps, maps, 3) + norm(maps))
        total += blocks * (conv(maps, outputs, 1) + norm(outputs) + norm(outputs))  # before and after the sum
        total += conv(inputs, outputs, 1) + norm(outputs)
        inputs = outputs
    assert size(on_meta("resnet50")) == total == 23_551_050


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_resnet_is_as_deep_as_its_name_says(depth):
    model = on_meta(f"resnet{depth}", width=2)
    weighted = [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len([n for n in weighted if "downsample" not in n]) == depth


@pytest.mark.parametrize("depth", DEPTHS)
def test_forward_backward_and_trace(depth):
    model, x = getattr(models, f"resnet{depth}")(num_classes=7, width=2), torch.randn(2, 3, 16, 16)
    assert model(x).shape == (2, 7)
    check_training_and_trace(model, [x], [x[:1]])


@pytest.mark.parametrize("depth", [18, 50])
def test_the_imagenet_stem_traces_too(depth):
    model = getattr(models, f"resnet{depth}")(stem="imagenet", width=2).eval()
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(torch.fx.symbolic_trace(model)(x), model(x))


def test_a_norm_follows_each_addition():
    model = models.resnet20(width=2)
    operators = [str(node.target) for node in torch.fx.symbolic_trace(model).graph.nodes]
    after = [operators[i + 1] for i, name in enumerate(operators) if "built-in function add" in name]
    assert len(after) == 9
    assert all(name.endswith(".post") for name in after)
    usual = models.resnet20(width=2, post_norm=False)
    assert not any("post" in name for name in usual.state_dict())
    assert size(model) - size(usual) == 3 * (norm(2) + norm(4) + norm(8))


def test_stems():
    small, large = (on_meta("resnet18", stem=stem) for stem in ("cifar", "imagenet"))
    assert (small.conv1.kernel_size, small.conv1.stride) == ((3, 3), (1, 1))
    assert (large.conv1.kernel_size, large.conv1.stride) == ((7, 7), (2, 2))
    assert isinstance(large.maxpool, nn.MaxPool2d)


def test_default_widths_and_classes():
    for depth in DEPTHS:
        model = on_meta(f"resnet{depth}")
        assert model.bn1.num_features == (64 if depth in (18, 34, 50, 101, 152) else 16)
        assert model.fc.out_features == 10


def test_usual_names_so_that_published_weights_load():
    names = on_meta("resnet50", post_norm=False).state_dict()
    assert {"conv1.weight", "bn1.bias", "layer1.0.downsample.0.weight", "layer4.2.bn3.running_var"} <= set(
        names
    )


@pytest.mark.parametrize("build", [models.resnet20, models.resnet50])
def test_branches_that_begin_at_zero(build):
    """Then every block begins as its shortcut."""
    model = build(width=2, post_norm=False).eval()
    zero_branches(model)
    first = model.layer1[0]
    x = torch.randn(1, 2, 4, 4)
    assert torch.equal(first(x), first.downsample(x).relu())
    gone = [name for name, p in model.named_parameters() if p.dim() == 1 and not p.any()]
    last = "bn2" if build is models.resnet20 else "bn3"
    scales = [name for name in gone if name.endswith("weight")]
    assert len(scales) == (9 if build is models.resnet20 else 16)
    assert all(name.endswith(f"{last}.weight") for name in scales)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("resnet20", {"width": 0}, "width is a whole number from 1 up, got 0"),
        ("resnet50", {"width": 2.5}, "width is a whole number from 1 up, got 2.5"),
        ("resnet18", {"num_classes": -1}, "num_classes is a whole number from 1 up, got -1"),
        (
            "resnet18",
            {"stem": "mnist"},
            "stem is 'cifar' (small images) or 'imagenet' (large ones), got 'mnist'",
        ),
    ],
)
def test_wrong_arguments(name, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        getattr(models, name)(**arguments)
