"""The networks: sizes known from publications or worked out by hand, forward passes, traces."""

import inspect
import re
from typing import Any

import pytest
import torch
from torch import nn

from fadeout import models

RESNETS = (18, 20, 32, 34, 44, 50, 56, 101, 110, 152)
TINY = {
    **{f"resnet{depth}": {"width": 2} for depth in RESNETS},
    "mobilenetv2": {"width_mult": 0.1},
    "densenet40": {"growth": 2},
    "vit": {"image_size": 16, "dim": 12, "depth": 2},
}


def on_meta(name, *args, **kwargs):
    with torch.device("meta"):
        return getattr(models, name)(*args, **kwargs)


def size(model):
    return sum(p.numel() for p in model.parameters())


def spatial(module, side):
    return tuple(module(torch.empty(1, 3, side, side, device="meta")).shape[2:])


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


def test_mobilenet_has_its_published_size():
    assert size(on_meta("mobilenetv2", 1000, stem="imagenet")) == 3_504_872
    # The stems differ in stride alone: what changes here is the classifier.
    assert size(on_meta("mobilenetv2")) == 3_504_872 - (1280 + 1) * 990


def conv(f_in, f_out, kernel):
    return f_in * f_out * kernel**2


def norm(maps):
    return 2 * maps


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


def test_densenet40_by_hand():
    total, maps = conv(3, 16, 3), 16
    for block in range(3):
        for _ in range(12):
            total += norm(maps) + conv(maps, 12, 3)
            maps += 12
        total += norm(maps) + conv(maps, maps, 1) if block < 2 else 0
    total += norm(maps) + maps * 10 + 10
    assert maps == 448
    assert size(on_meta("densenet40")) == total == 1_019_722


def test_vit_by_hand():
    dim, tokens = 192, 64
    attention = 4 * (dim * dim + dim)
    perceptron = dim * 4 * dim + 4 * dim + 4 * dim * dim + dim
    stem = 3 * dim * 4 * 4 + dim + tokens * dim
    total = stem + 6 * (attention + perceptron + 2 * norm(dim)) + norm(dim) + dim * 10 + 10
    assert size(on_meta("vit")) == total == 2_693_194


@pytest.mark.parametrize("depth", RESNETS)
def test_a_resnet_is_as_deep_as_its_name_says(depth):
    model = on_meta(f"resnet{depth}", width=2)
    weighted = [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len([n for n in weighted if "downsample" not in n]) == depth


@pytest.mark.parametrize("name", TINY)
def test_forward_backward_and_trace(name):
    model = getattr(models, name)(num_classes=7, **TINY[name])
    x = torch.randn(2, 3, 16, 16)
    assert model(x).shape == (2, 7)
    model(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    model.eval()
    traced = torch.fx.symbolic_trace(model)
    assert torch.equal(traced(x), model(x))
    assert torch.equal(traced(x[:1]), model(x[:1]))


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "mobilenetv2"])
def test_the_imagenet_stem_traces_too(name):
    model = getattr(models, name)(stem="imagenet", **TINY[name]).eval()
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
    assert spatial(on_meta("mobilenetv2").features, 32) == (4, 4)
    assert spatial(on_meta("mobilenetv2", stem="imagenet").features, 224) == (7, 7)


def test_default_widths_and_classes():
    for depth in RESNETS:
        model = on_meta(f"resnet{depth}")
        assert model.bn1.num_features == (64 if depth in (18, 34, 50, 101, 152) else 16)
        assert model.fc.out_features == 10


def test_usual_names_so_that_published_weights_load():
    names = on_meta("resnet50", post_norm=False).state_dict()
    assert {"conv1.weight", "bn1.bias", "layer1.0.downsample.0.weight", "layer4.2.bn3.running_var"} <= set(
        names
    )
    names = on_meta("mobilenetv2").state_dict()
    assert {"features.0.0.weight", "features.1.conv.1.weight", "features.18.1.bias"} <= set(names)
    assert {"features.17.conv.3.running_mean", "classifier.1.weight"} <= set(names)


def test_mobilenet_widths_are_multiples_of_eight():
    model = on_meta("mobilenetv2", width_mult=0.35)
    narrow = [m.conv[-1].num_features for m in model.features if hasattr(m, "residual")]
    assert sorted(set(narrow)) == [8, 16, 24, 32, 56, 112]
    assert model.classifier[1].in_features == 1280


def test_whole_heads_can_be_cut_out_of_the_transformer():
    model = models.vit(image_size=8, dim=12, depth=1, heads=3).eval()
    x = torch.randn(2, 3, 8, 8)
    attention: Any = model.blocks[0].attention
    assert attention.heads == 3
    kept = torch.cat([torch.arange(4), torch.arange(8, 12)])
    with torch.no_grad():
        attention.proj.weight[:, 4:8] = 0
        whole = model(x)
        for name in "qkv":
            old = getattr(attention, name)
            new = nn.Linear(12, 8)
            new.weight.copy_(old.weight[kept])
            new.bias.copy_(old.bias[kept])
            setattr(attention, name, new)
        attention.proj.weight = nn.Parameter(attention.proj.weight[:, kept])
        torch.testing.assert_close(model(x), whole)
    assert attention.heads == 2


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
        ("mobilenetv2", {"stem": ""}, "got ''"),
        ("mobilenetv2", {"width_mult": 0}, "width_mult is a number above 0, got 0"),
        ("mobilenetv2", {"width_mult": float("nan")}, "width_mult is a number above 0, got nan"),
        ("densenet40", {"growth": 0}, "growth is a whole number from 1 up, got 0"),
        ("vit", {"heads": 5}, "heads must divide dim, got 5 heads for dim 192"),
        ("vit", {"patch": 5}, "patch must divide image_size, got patch 5 for image_size 32"),
        ("vit", {"depth": True}, "depth is a whole number from 1 up, got True"),
    ],
)
def test_wrong_arguments(name, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        getattr(models, name)(**arguments)


def test_every_exported_network_is_a_documented_function():
    for name in models.__all__:
        assert inspect.isfunction(getattr(models, name))
        assert inspect.getdoc(getattr(models, name))
