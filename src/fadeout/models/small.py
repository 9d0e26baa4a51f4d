"""A small convolutional network for 8 by 8 images."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fadeout._arguments import Count, checked


@checked
class SmallCNN(nn.Module):
    """Two convolutions and two linear layers with ReLUs: 38,282 parameters without norms."""

    def __init__(self, num_classes: Count = 10, norm: bool = False):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(16) if norm else nn.Identity()
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(32) if norm else nn.Identity()
        self.fc1 = nn.Linear(512, 64)
        self.norm3 = nn.BatchNorm1d(64) if norm else nn.Identity()
        self.fc2 = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.norm1(self.conv1(x)), 2))
        x = F.relu(self.norm2(self.conv2(x)))
        x = F.relu(self.norm3(self.fc1(torch.flatten(x, 1))))
        return self.fc2(x)


def smallcnn(num_classes: int = 10, norm: bool = False) -> SmallCNN:
    """The network of ``fadeout demo``, for 8 by 8 images of one channel.

    Args:
        num_classes: the number of outputs.
        norm: a batch-norm after every layer but the last, as structured pruning wants it.

    >>> sum(p.numel() for p in smallcnn().parameters())
    38282
    """
    return SmallCNN(num_classes, norm)
