"""The graph convolutional network of Kipf and Welling (2017), as the paper uses it on Cora."""

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fadeout._arguments import Count, Only, checked

Rate = Annotated[float, Only(lambda rate: 0 <= rate <= 1, "a fraction from 0 to 1")]


class GraphConvolution(nn.Module):
    """``adjacency @ x @ weight + bias``: each node gets the weighted mean of its neighbours."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        bound = 1 / math.sqrt(outputs)
        self.weight = nn.Parameter(torch.empty(inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return adjacency @ (x @ self.weight) + self.bias


@checked
class GCN(nn.Module):
    """Two graph convolutions, with dropout on the hidden layer."""

    def __init__(self, num_classes: Count, features: Count, width: Count, dropout: Rate):
        super().__init__()
        self.conv1 = GraphConvolution(features, width)
        self.conv2 = GraphConvolution(width, num_classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return self.conv2(self.dropout(F.relu(self.conv1(x, adjacency))), adjacency)


def gcn(num_classes: int = 7, width: int = 16, *, features: int = 1433, dropout: float = 0.5) -> GCN:
    """A graph convolutional network; it takes the nodes' features and the normalised adjacency matrix.

    Args:
        num_classes: outputs for each node.
        width: hidden units.
        features: inputs of each node; Cora has 1,433 words.
        dropout: the rate, on the hidden layer.

    >>> network = gcn(num_classes=2, features=3)
    >>> network(torch.ones(4, 3), torch.eye(4)).shape
    torch.Size([4, 2])
    """
    return GCN(num_classes, features, width, dropout)
