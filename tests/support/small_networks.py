"""Small networks with dead channels, to be compacted in different ways."""

import torch
import torch.nn.functional as F
from support.helpers import conv, kill
from torch import Tensor, nn

IMAGES = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0)).double()


class Residual(nn.Module):
    """Two layers that are added; the rectifier between leaves no module to gather channels."""

    def __init__(self):
        super().__init__()
        self.a, self.norm = conv(3, 4, bias=False), nn.BatchNorm2d(4)
        self.b, self.c = conv(3, 4), conv(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(F.relu(self.norm(self.a(x))) + self.b(x))


class Functional(nn.Module):
    """Dropout and batch-norm as functions, which take the mode as an argument."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = conv(3, 4), conv(3, 4), conv(4, 2)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("variance", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x)) + self.b(x)
        x = F.batch_norm(x, self.mean, self.variance, training=self.training)
        return self.c(F.dropout(x, 0.5, self.training))


class Chain(nn.Sequential):
    def __init__(self):
        super().__init__(conv(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 2, 3))


def chain() -> Chain:
    model = Chain().double()
    kill(model[1], channels=[1, 2])
    return model


def residual() -> Residual:
    model = Residual().double()
    kill(model.norm, channels=[0, 3])
    kill(model.b, channels=[1, 3])
    return model


def functional() -> Functional:
    model = Functional().double()
    kill(model.a, channels=[0])
    kill(model.b, channels=[1])
    return model
