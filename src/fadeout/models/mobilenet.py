"""MobileNetV2 (Sandler et al., 2018): inverted residuals with depthwise convolutions.

Modules carry the names that are usual in PyTorch, so that with ``stem="imagenet"`` published weights load.
"""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fadeout._arguments import Count, Only, checked
from fadeout.models.checks import Stem

Factor = Annotated[float, Only(lambda x: 0 < x < 1000, "a number above 0")]

# expansion, maps, blocks, stride of the first block
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """Widen (1x1), filter each map (3x3), narrow (1x1, linear); added to the input where shapes allow."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int):
        super().__init__()
        hidden = inputs * expansion
        widen = [_convolution(inputs, hidden, 1)] if expansion > 1 else []
        self.conv = nn.Sequential(
            *widen,
            _convolution(hidden, hidden, 3, stride, groups=hidden),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.residual else self.conv(x)


@checked
class MobileNetV2(nn.Module):
    """See :func:`mobilenetv2`."""

    def __init__(self, num_classes: Count = 10, width_mult: Factor = 1.0, stem: Stem = "cifar"):
        super().__init__()
        small = stem == "cifar"
        inputs = _multiple_of_8(32 * width_mult)
        self.features = nn.Sequential(_convolution(3, inputs, 3, 1 if small else 2))
        for i, (expansion, maps, blocks, stride) in enumerate(STAGES):
            outputs = _multiple_of_8(maps * width_mult)
            for j in range(blocks):
                # Small images keep their size in the stem and in the second stage: 32 ends as 4, not as 1.
                halve = stride == 2 and j == 0 and not (small and i == 1)
                self.features.append(InvertedResidual(inputs, outputs, 2 if halve else 1, expansion))
                inputs = outputs
        outputs = _multiple_of_8(1280 * max(1.0, width_mult))
        self.features.append(_convolution(inputs, outputs, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(outputs, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.features(x), 1)
        return self.classifier(torch.flatten(x, 1))


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(),
    )


def _multiple_of_8(maps: float) -> int:
    near = max(8, int(maps + 4) // 8 * 8)
    return near if near >= 0.9 * maps else near + 8  # rounding never takes more than a tenth away


def mobilenetv2(num_classes: int = 10, width_mult: float = 1.0, stem: Stem = "cifar") -> MobileNetV2:
    """MobileNetV2.

    Args:
        num_classes: outputs.
        width_mult: factor on all widths, which are then rounded to multiples of eight.
        stem: ``"cifar"`` halves the image three times, ``"imagenet"`` five times.

    >>> network = mobilenetv2(num_classes=5, width_mult=0.1)
    >>> network(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 5])
    """
    return MobileNetV2(num_classes, width_mult, stem)
