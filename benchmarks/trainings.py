"""The networks that the benchmarks train, with the optimizer and the length of training of the paper.

Images are random numbers: the time of a step does not depend on what they show. Cora is the real one where
FADEOUT_DATA names the folder that holds it, otherwise a random graph of its size.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fadeout
from fadeout.experiments.data.cora import Matrix, cora

RATE = 1e-3  # low, so that a hundred steps on the same random batch leave the weights finite


@dataclass(frozen=True)
class Training:
    """A network, its batch and its optimizer."""

    model: nn.Module
    inputs: tuple[Any, ...]
    labels: Tensor
    optimizer: torch.optim.Optimizer

    def backward(self) -> None:
        """Forward and backward pass: all of a step but the optimizer's."""
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(*self.inputs), self.labels).backward()

    def another_batch(self) -> None:
        """Pair random images with other labels: gradients of another batch. A graph is its only batch."""
        if isinstance(self.inputs[0], Tensor):
            self.labels.copy_(self.labels[torch.randperm(len(self.labels))])

    def other_gradients(self) -> None:
        """Gradients as of another batch, without a pass: the same numbers in other places."""
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                row = parameter.grad.flatten()
                parameter.grad.copy_(row.roll(int(torch.randint(len(row), ()))).view_as(parameter))

    @property
    def example(self) -> Tensor:
        """One input, for tracing."""
        return self.inputs[0][:1]


def on_images(
    build: Callable[[], nn.Module], shape: tuple[int, int, int], batch: int, momentum: float = 0.9
) -> Training:
    """A network on random images, its batch-norm scales spread as training spreads them."""
    torch.manual_seed(0)
    model = build()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight)
    images, labels = torch.randn(batch, *shape), torch.randint(10, (batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=momentum, weight_decay=5e-4)
    return Training(model, (images,), labels, optimizer)


def resnet20(width: int = 64, batch: int = 128, size: int = 32) -> Training:
    """ResNet-20, as on CIFAR-10."""
    return on_images(lambda: fadeout.models.resnet20(width=width), (3, size, size), batch)


def resnet50(width: int = 64, batch: int = 16, size: int = 224) -> Training:
    """ResNet-50, as on ImageNet."""
    return on_images(lambda: fadeout.models.resnet50(1000, width, stem="imagenet"), (3, size, size), batch)


def lenet5(batch: int = 128) -> Training:
    """LeNet-5, as on MNIST."""
    return on_images(fadeout.models.lenet5, (1, 28, 28), batch, momentum=0.0)


def gcn(nodes: int = 2708, words: int = 1433, links: int = 5429) -> Training:
    """The graph convolutional network on Cora, or on a random graph of so many nodes, words and links."""
    torch.manual_seed(0)
    if real_cora() and nodes == 2708:
        graph = cora()
        inputs, labels = next(graph.batches(1, epoch=0, seed=0))
    else:
        features = (torch.rand(nodes, words) < 0.0127).float()  # a paper of Cora has 18 of its 1,433 words
        adjacency = torch.eye(nodes)
        ends = torch.randint(nodes, (2, links))
        adjacency[ends[0], ends[1]] = adjacency[ends[1], ends[0]] = 1.0
        inputs = (
            Matrix(features / features.sum(1, keepdim=True).clamp(min=1)),
            Matrix(adjacency / adjacency.sum(1, keepdim=True)),
        )
        labels = torch.full((nodes,), -100)
        labels[: min(140, nodes)] = torch.randint(7, (min(140, nodes),))
    model = fadeout.models.gcn(features=inputs[0].values.shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, weight_decay=5e-4)
    return Training(model, inputs, labels, optimizer)


def real_cora() -> bool:
    """Whether the real graph is there."""
    return "FADEOUT_DATA" in os.environ
