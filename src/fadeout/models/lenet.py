"""LeNet-5 (LeCun et al., 1998) for 28 by 28 images."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fadeout._arguments import Count, checked


@checked
class LeNet5(nn.Module):
    """Two convolutions and three linear layers: 61,706 parameters."""

    def __init__(self, num_classes: Count = 10):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        # Pooling first gives the same numbers, and a quarter of the work to the activation.
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


def lenet5(num_classes: int = 10) -> LeNet5:
    """LeNet-5 with ReLUs and max-pooling, PyTorch's default initialisation.

    >>> sum(p.numel() for p in lenet5().parameters())
    61706
    """
    return LeNet5(num_classes)


@checked
class LeNet5Authors(nn.Module):
    """LeNet-5 in the programme of Tessier et al.: the second layer twice, side by side, and added up."""

    def __init__(self, num_classes: Count = 10):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)  # as without padding on 32 by 32 images
        self.conv2a = nn.Conv2d(6, 16, 5)
        self.conv2b = nn.Conv2d(6, 16, 5)
        self.conv3 = nn.Conv2d(16, 120, 5)
        self.fc1 = nn.Linear(120, 84)
        self.fc2 = nn.Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.max_pool2d(F.relu(self.conv2a(x)), 2) + F.max_pool2d(F.relu(self.conv2b(x)), 2)
        x = torch.flatten(F.relu(self.conv3(x)), 1)
        return self.fc2(F.relu(self.fc1(x)))


def lenet5_authors(num_classes: int = 10) -> LeNet5Authors:
    """The LeNet-5 of the authors' programme.

    >>> sum(p.numel() for p in lenet5_authors().parameters())
    64122
    """
    return LeNet5Authors(num_classes)
