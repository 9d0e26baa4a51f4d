"""Channels on both sides of a gather get the same places, for inference, and outputs are the same."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import Net, conv, gathers, kill, same_outputs, size
from torch import nn

import fadeout
from fadeout.compaction.plan import plans_of
from fadeout.models.resnet import BasicBlock, ResNet

IMAGES = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)).double()
POSTS = [f"layer{stage}.{block}.post" for stage in (1, 2, 3) for block in range(3)]


@torch.no_grad()
def lived(*stages: int) -> nn.Module:
    """A residual network with norms after its additions, as a training leaves it; by default a ResNet-20."""
    torch.manual_seed(0)
    model = ResNet(BasicBlock, stages or (3, 3, 3), width=6)
    model.conv1 = conv(1, 6, 3, padding=1, bias=False)
    for name, tensor in model.state_dict().items():
        if name.endswith(("bias", "running_mean")):
            tensor.normal_()
        elif tensor.dim() == 1:  # scales and variances
            tensor.uniform_(0.5, 2)
    return model.double().eval()


def without(gone: dict[str, list[int]], *stages: int) -> nn.Module:
    model = lived(*stages)
    for name, channels in gone.items():
        kill(model.get_submodule(name), channels=channels)
    return model


def small_of(model: nn.Module) -> nn.Module:
    small = fadeout.compact(model, IMAGES, for_inference=True)
    same_outputs(model, small, IMAGES)
    return small


def equally_many(*stages: int) -> nn.Module:
    """Each sum loses a third of its channels, and others than the one before it."""
    drawn = torch.Generator().manual_seed(0)
    sums = [m for m in lived(*stages).named_modules() if m[0].endswith("post")]
    sizes = {name: norm.num_features for name, norm in sums}
    gone = {n: torch.randperm(size, generator=drawn)[: size // 3].tolist() for n, size in sizes.items()}
    return without(gone, *stages)


def widths(model: nn.Module) -> list[int]:
    return [len(tensor) for name, tensor in model.state_dict().items() if name.endswith("post.weight")]


def test_equally_many_channels_are_not_moved():
    model = equally_many()
    small, trained_further = small_of(model), fadeout.compact(model, IMAGES)
    assert widths(small) == widths(trained_further) == [4, 4, 4, 8, 8, 8, 16, 16, 16]
    stem, *found = gathers(small)  # all six channels come out of the stem
    assert [gather.stays for gather in found] == [True] * 6
    assert "in its place" in repr(found[0])
    assert "in its place" not in repr(stem)
    assert not any(gather.stays for gather in gathers(trained_further))
    kept = plans_of(small)[0].kept
    assert any(own != sorted(own) for own in kept.values())
    assert all(sorted(own) == plans_of(trained_further)[0].kept[name] for name, own in kept.items())


def test_different_numbers_are_gathered_by_index():
    small = small_of(without({POSTS[0]: [0], POSTS[1]: [1, 2], POSTS[2]: [3, 4]}))
    assert [gather.stays for gather in gathers(small)] == [False, False, True]


@settings(max_examples=10)
@given(st.lists(st.sets(st.integers(0, 5), max_size=4), min_size=4, max_size=4))
def test_whatever_goes(gone):
    """From one block of a stage to the next, and from one stage to the next."""
    posts = ["layer1.0.post", "layer1.1.post", "layer2.0.post", "layer2.1.post"]
    model = without({name: sorted(own) for name, own in zip(posts, gone, strict=True)}, 2, 2)
    small = small_of(model)
    again = fadeout.compact(small, IMAGES, for_inference=True)
    same_outputs(model, again, IMAGES)
    assert size(again) == size(small)


def test_saved_loaded_and_cut_once_more(tmp_path):
    small = small_of(equally_many())
    fadeout.save(small, tmp_path / "small.safetensors")
    again = fadeout.load(tmp_path / "small.safetensors", lived)
    assert plans_of(again) == plans_of(small)
    assert [gather.stays for gather in gathers(again)] == [False] + [True] * 6
    assert torch.equal(again(IMAGES), small(IMAGES))
    assert torch.equal(copy.deepcopy(again)(IMAGES), small(IMAGES))
    kill(again.get_submodule("layer1.1.post"), channels=[1, 2])
    same_outputs(again, fadeout.compact(again, IMAGES, for_inference=True), IMAGES)


def test_exported_without_a_gather(tmp_path):
    onnx = pytest.importorskip("onnx")
    small = small_of(equally_many(2, 2)).float()
    fadeout.export.onnx(small, tmp_path / "small.onnx", IMAGES.float())  # which compares the outputs
    kinds = [node.op_type for node in onnx.load(tmp_path / "small.onnx").graph.node]
    assert kinds.count("Gather") == 1  # behind the stem
    assert kinds.count("Pad") == 0


def residual(rest, **more):
    """Two sums, of which the second lacks a channel of the first, and the first one of the second."""
    layers = {name: conv(4, 4, 3, padding=1) for name in ("one", "two")}
    norms = {name: nn.BatchNorm2d(4) for name in ("first", "second")}

    def forward(m, x):
        x = m.first(m.one(m.stem(x))).relu()
        return rest(m, m.second(x + m.two(x)).relu())

    model = Net(forward, stem=conv(1, 4), **layers, **norms, **more).double().eval()
    kill(model.first, channels=[0])
    kill(model.second, channels=[1])
    return model


@pytest.mark.parametrize(
    ("model", "stays"),
    [
        (residual(lambda m, x: m.end(x), end=conv(4, 2)), True),
        (residual(lambda m, x: m.end(x.flatten(1)), end=nn.Linear(4 * 64, 2)), True),  # the first moves
        (residual(lambda m, x: m.end(x), end=conv(4, 4, groups=2)), False),
        (residual(lambda m, x: m.end(x), end=conv(4, 4, groups=4)), False),
        (residual(lambda m, x: m.end(m.norm(x)), norm=nn.GroupNorm(2, 4), end=conv(4, 2)), False),
        (residual(lambda m, x: m.end(m.narrow(x)), narrow=conv(4, 1), end=conv(1, 2)), True),
        (residual(lambda m, x: x), False),
        (residual(lambda m, x: m.end(m.end(x)), end=conv(4, 4)), None),
    ],
    ids=["plain", "flat", "groups", "depthwise", "group-norm", "one channel", "output", "twice"],
)
def test_orders_that_matter_stay(model, stays):
    found = gathers(small_of(model))
    assert stays is None or [gather.stays for gather in found] == [stays] * len(found) != []
