"""MNIST: 70,000 handwritten digits of 28 by 28 pixels, in the publisher's four idx files."""

import gzip
import os

import numpy as np
import torch
from torch import Tensor

from fadeout.experiments.data.dataset import Dataset
from fadeout.experiments.data.download import obtain
from fadeout.experiments.data.source import Source

MNIST = Source(
    name="mnist",
    folder="MNIST/raw",
    files={
        "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
    },
    # PyTorch's copy first: the publisher's own server often refuses
    urls=("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
)


def mnist(directory: str | os.PathLike[str] | None = None) -> Dataset:
    """MNIST as float tensors (N, 1, 28, 28), with mean 0 and std 1 over the training images."""
    folder = obtain(MNIST, directory)
    train_x, train_y, test_x, test_y = (MNIST.read(folder, name, _parse_idx) for name in MNIST.files)
    return Dataset(_normalised(train_x), train_y.long(), _normalised(test_x), test_y.long())


def _normalised(images: Tensor) -> Tensor:
    return ((images.float() / 255 - 0.1307) / 0.3081).unsqueeze(1)


def _parse_idx(compressed: bytes) -> Tensor:
    """The idx format: two zeros, the type (8: bytes), the number of dimensions, their sizes, the values."""
    content = gzip.decompress(compressed)
    if content[:3] != b"\x00\x00\x08":
        raise ValueError("no idx file of bytes")
    dimensions = content[3]
    sizes = np.frombuffer(content, ">u4", dimensions, offset=4).astype(int)
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(sizes).copy())
