"""DenseNet-40 (Huang et al., 2017): every layer reads all the maps of its block so far."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fadeout._arguments import Count, checked


class DenseLayer(nn.Module):
    """Batch-norm, ReLU and convolution make new maps, which join the old ones."""

    def __init__(self, inputs: int, growth: int):
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(F.relu(self.norm(x)))], 1)


class Transition(nn.Module):
    """Mixes the maps, as many out as in, and halves the image."""

    def __init__(self, maps: int):
        super().__init__()
        self.norm = nn.BatchNorm2d(maps)
        self.conv = nn.Conv2d(maps, maps, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.norm(x))), 2)


@checked
class DenseNet(nn.Module):
    """Three dense blocks of 12 layers with transitions between them."""

    def __init__(self, num_classes: Count, growth: Count):
        super().__init__()
        maps = 16
        self.conv = nn.Conv2d(3, maps, 3, padding=1, bias=False)
        self.blocks = nn.Sequential()
        for i in range(3):
            if i > 0:
                self.blocks.append(Transition(maps))
            for _ in range(12):
                self.blocks.append(DenseLayer(maps, growth))
                maps += growth
        self.norm = nn.BatchNorm2d(maps)
        self.fc = nn.Linear(maps, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.blocks(self.conv(x))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def densenet40(num_classes: int = 10, growth: int = 12) -> DenseNet:
    """DenseNet-40 for small images, without bottlenecks or compression: three blocks of 12 layers.

    Args:
        num_classes: outputs.
        growth: maps that each layer adds.

    >>> network = densenet40(num_classes=5, growth=2)
    >>> network(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 5])
    """
    return DenseNet(num_classes, growth)
