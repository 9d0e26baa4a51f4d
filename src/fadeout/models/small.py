"""A small convolutional network for 8 by 8 pictures."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SmallCNN(nn.Module):
    """Two convolutions and two linear layers, with rectifiers and no norms: 38,282 parameters."""

    def __init__(self, num_classes: int = 10):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(512, 64)
        self.fc2 = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(self.conv2(x))
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc2(x)


def smallcnn(num_classes: int = 10) -> SmallCNN:
    """The network of ``fadeout demo``, for 8 by 8 pictures of one channel.

    >>> sum(p.numel() for p in smallcnn().parameters())
    38282
    """
    return SmallCNN(num_classes)
