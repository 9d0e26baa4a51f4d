"""A small network, its optimizer, a pruner on both, and a step."""

import torch
from torch import nn

import fadeout


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(10, 100), nn.ReLU(), nn.Linear(100, 5))


def build(model, method=fadeout.SelectiveWeightDecay, **arguments):
    """The pruner, and the optimizer that it is on."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return method(model, optimizer, **{"sparsity": 0.5, "steps": 10, **arguments}), optimizer


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(8, 10)).square().mean().backward()
    optimizer.step()
