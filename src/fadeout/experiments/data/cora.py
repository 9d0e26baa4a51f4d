"""Cora: 2,708 papers, the words in them, their citations and their fields, in the publisher's two files."""

import copy
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fadeout.experiments.data.dataset import IGNORED
from fadeout.experiments.data.download import obtain
from fadeout.experiments.data.source import Source

CORA = Source(
    name="cora",
    folder="cora",
    files={
        "cora.content": "md5:7ffbff7cfb44225449cff17728829af1",
        "cora.cites": "md5:d0f9febfe3d82e9a063bed05be34ae83",
    },
    urls=("https://linqs-data.soe.ucsc.edu/public/lbc/",),
    archive=("cora.tgz", ""),  # the files in it have checksums
)


class Matrix:
    """A constant sparse matrix that can be multiplied by a dense one, with gradients for the latter.

    PyTorch transposes a sparse matrix anew in each backward pass; to keep the transpose makes an epoch on
    Cora four times as fast.

    >>> weight = torch.ones(2, 3, requires_grad=True)
    >>> (Matrix(torch.tensor([[0.0, 2.0], [1.0, 0.0]])) @ weight).sum().backward()
    >>> weight.grad[:, 0]
    tensor([1., 2.])
    """

    def __init__(self, dense: Tensor):
        with warnings.catch_warnings():  # the layout calls itself a beta
            warnings.simplefilter("ignore", UserWarning)
            self.values, self.transpose = dense.to_sparse_csr(), dense.t().contiguous().to_sparse_csr()

    def __matmul__(self, other: Tensor) -> Tensor:
        return _Product.apply(other, self.values, self.transpose)  # pyright: ignore[reportReturnType]

    def to(self, device: torch.device | str) -> "Matrix":
        moved = copy.copy(self)
        moved.values, moved.transpose = self.values.to(device), self.transpose.to(device)
        return moved


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, other: Tensor, values: Tensor, transpose: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.transpose = transpose
        return values @ other

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.transpose @ gradient, None, None


Batch = tuple[tuple[Matrix, Matrix], Tensor]


@dataclass(frozen=True)
class Graph:
    """A graph whose nodes have classes, behind the interface of a :class:`~fadeout.experiments.data.Dataset`.

    There is one batch, the whole graph. Labels outside the part in question are ``IGNORED``.
    """

    features: Matrix
    adjacency: Matrix
    labels: Tensor
    train: slice
    held_out: slice
    test: slice

    @property
    def num_classes(self) -> int:
        return int(self.labels.max()) + 1

    @property
    def example(self) -> tuple[Tensor, Tensor]:
        """Features and adjacency, which the network takes, as ordinary tensors, to trace it with."""
        return self.features.values.to_dense(), self.adjacency.values.to_dense()

    def steps(self, batch_size: int) -> int:
        """One: the whole graph is a batch, whatever its size."""
        return 1

    def batches(self, batch_size: int, *, epoch: int, seed: int, first: int = 0) -> Iterator[Batch]:
        """The whole graph, with the labels of the training nodes."""
        if first == 0:
            yield self._batch(self.train)

    def tests(self, batch_size: int) -> Iterator[Batch]:
        """The whole graph, with the labels of the test nodes."""
        yield self._batch(self.test)

    def validation(self) -> "Graph":
        """The same graph, tested on the nodes that are held out for it."""
        return replace(self, test=self.held_out)

    def _batch(self, part: slice) -> Batch:
        labels = torch.full_like(self.labels, IGNORED)
        labels[part] = self.labels[part]
        return (self.features, self.adjacency), labels


def cora(directory: str | os.PathLike[str] | None = None) -> Graph:
    """Cora, split and normalised as in Kipf's PyTorch program, which reaches the paper's accuracies.

    Rows in the order of the file: 0 to 139 for training, 200 to 499 for validation, 500 to 1499 for the
    test. Features, and the symmetric adjacency with a loop at each node, are divided by the sums of their
    rows.
    """
    folder = obtain(CORA, directory)
    content, cites = (CORA.read(folder, name).decode().splitlines() for name in CORA.files)
    rows, edges = ([line.split() for line in lines] for lines in (content, cites))
    number = {row[0]: i for i, row in enumerate(rows)}
    classes = sorted({row[-1] for row in rows})
    words = np.array([row[1:-1] for row in rows], dtype=np.float32)
    links = np.array([(number[a], number[b]) for a, b in edges if a in number and b in number])
    adjacency = np.eye(len(rows), dtype=np.float32)
    adjacency[links[:, 0], links[:, 1]] = 1
    adjacency[links[:, 1], links[:, 0]] = 1
    return Graph(
        features=_normalised(words),
        adjacency=_normalised(adjacency),
        labels=torch.tensor([classes.index(row[-1]) for row in rows]),
        train=slice(0, 140),
        held_out=slice(200, 500),
        test=slice(500, 1500),
    )


def _normalised(matrix: np.ndarray) -> Matrix:
    return Matrix(torch.from_numpy(matrix / matrix.sum(1, keepdims=True).clip(min=1e-12)))
