"""Residual networks (He et al., 2016), as the paper has them: with a batch-norm after each addition.

Modules carry the names that are usual for residual networks in PyTorch, so that with ``post_norm=False``
and ``stem="imagenet"`` published ImageNet weights load as they are.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fadeout._arguments import Count, checked
from fadeout.models.checks import Stem


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, maps: int, stride: int, post_norm: bool):
        super().__init__()
        self.conv1 = _convolution(inputs, maps, 3, stride)
        self.bn1 = nn.BatchNorm2d(maps)
        self.conv2 = _convolution(maps, maps, 3)
        self.bn2 = nn.BatchNorm2d(maps)
        self.downsample = _shortcut(inputs, maps, stride)
        self.post = nn.BatchNorm2d(maps) if post_norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(self.post(out + self.downsample(x)))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 convolutions, the last four times as wide, beside a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, maps: int, stride: int, post_norm: bool):
        super().__init__()
        outputs = self.expansion * maps
        self.conv1 = _convolution(inputs, maps, 1)
        self.bn1 = nn.BatchNorm2d(maps)
        self.conv2 = _convolution(maps, maps, 3, stride)
        self.bn2 = nn.BatchNorm2d(maps)
        self.conv3 = _convolution(maps, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)
        self.post = nn.BatchNorm2d(outputs) if post_norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return F.relu(self.post(out + self.downsample(x)))


@checked
class ResNet(nn.Module):
    """A stem, stages of residual blocks that halve the image and double the maps, a linear layer.

    Args:
        block: the kind of block.
        stages: how many blocks each stage has.
        num_classes: outputs.
        width: feature maps of the first stage ("initial embedding" in the paper).
        stem: ``"cifar"``, a 3x3 convolution; ``"imagenet"``, a 7x7 one and a pooling, each of stride 2.
        post_norm: a batch-norm after each residual addition, as in the paper: its scales rank the
            channels of the sum. False gives the usual network.

    >>> network = resnet20(num_classes=5, width=4)
    >>> network(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 5])
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        stages: Sequence[Count],
        num_classes: Count = 10,
        width: Count = 64,
        stem: Stem = "cifar",
        post_norm: bool = True,
    ):
        super().__init__()
        large = stem == "imagenet"
        self.conv1 = _convolution(3, width, 7, 2) if large else _convolution(3, width, 3)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1) if large else nn.Identity()
        self.stages = [f"layer{i + 1}" for i in range(len(stages))]
        inputs = width
        for i, (name, blocks) in enumerate(zip(self.stages, stages, strict=True)):
            maps = width * 2**i
            layer = nn.Sequential()
            for j in range(blocks):
                layer.append(block(inputs, maps, 2 if i > 0 and j == 0 else 1, post_norm))
                inputs = maps * block.expansion
            self.add_module(name, layer)
        self.fc = nn.Linear(inputs, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        for name in self.stages:
            x = self.get_submodule(name)(x)
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def zero_branches(model: nn.Module) -> None:
    """Let every residual block begin as its shortcut: the last scale of its branch becomes zero.

    >>> network = resnet20(post_norm=False)
    >>> zero_branches(network)
    >>> int(network.get_parameter("layer1.0.bn2.weight").count_nonzero())
    0
    """
    for block in model.modules():
        if isinstance(block, BasicBlock | Bottleneck):
            nn.init.zeros_((block.bn3 if isinstance(block, Bottleneck) else block.bn2).weight)


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(_convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


# The builders differ only in their blocks; their arguments are those of ResNet.


def resnet18(num_classes: int = 10, width: int = 64, stem: Stem = "cifar", post_norm: bool = True) -> ResNet:
    """Four stages of 2, 2, 2, 2 basic blocks."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes, width, stem, post_norm)


def resnet34(num_classes: int = 10, width: int = 64, stem: Stem = "cifar", post_norm: bool = True) -> ResNet:
    """Four stages of 3, 4, 6, 3 basic blocks."""
    return ResNet(BasicBlock, (3, 4, 6, 3), num_classes, width, stem, post_norm)


def resnet50(num_classes: int = 10, width: int = 64, stem: Stem = "cifar", post_norm: bool = True) -> ResNet:
    """Four stages of 3, 4, 6, 3 bottlenecks."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes, width, stem, post_norm)


def resnet101(num_classes: int = 10, width: int = 64, stem: Stem = "cifar", post_norm: bool = True) -> ResNet:
    """Four stages of 3, 4, 23, 3 bottlenecks."""
    return ResNet(Bottleneck, (3, 4, 23, 3), num_classes, width, stem, post_norm)


def resnet152(num_classes: int = 10, width: int = 64, stem: Stem = "cifar", post_norm: bool = True) -> ResNet:
    """Four stages of 3, 8, 36, 3 bottlenecks."""
    return ResNet(Bottleneck, (3, 8, 36, 3), num_classes, width, stem, post_norm)


def resnet20(num_classes: int = 10, width: int = 16, stem: Stem = "cifar", post_norm: bool = True) -> ResNet:
    """Three stages of 3 basic blocks.

    >>> sum(p.numel() for p in resnet20().parameters())
    273146
    """
    return ResNet(BasicBlock, (3, 3, 3), num_classes, width, stem, post_norm)


def resnet32(num_classes: int = 10, width: int = 16, stem: Stem = "cifar", post_norm: bool = True) -> ResNet:
    """Three stages of 5 basic blocks."""
    return ResNet(BasicBlock, (5, 5, 5), num_classes, width, stem, post_norm)


def resnet44(num_classes: int = 10, width: int = 16, stem: Stem = "cifar", post_norm: bool = True) -> ResNet:
    """Three stages of 7 basic blocks."""
    return ResNet(BasicBlock, (7, 7, 7), num_classes, width, stem, post_norm)


def resnet56(num_classes: int = 10, width: int = 16, stem: Stem = "cifar", post_norm: bool = True) -> ResNet:
    """Three stages of 9 basic blocks."""
    return ResNet(BasicBlock, (9, 9, 9), num_classes, width, stem, post_norm)


def resnet110(num_classes: int = 10, width: int = 16, stem: Stem = "cifar", post_norm: bool = True) -> ResNet:
    """Three stages of 18 basic blocks."""
    return ResNet(BasicBlock, (18, 18, 18), num_classes, width, stem, post_norm)
