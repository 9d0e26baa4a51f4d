"""MNIST: 70,000 handwritten digits of 28 by 28 pixels, in the publisher's four idx files."""

import gzip
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fadeout.data.dataset import Dataset

_FILES = {
    "train_x": "train-images-idx3-ubyte.gz",
    "train_y": "train-labels-idx1-ubyte.gz",
    "test_x": "t10k-images-idx3-ubyte.gz",
    "test_y": "t10k-labels-idx1-ubyte.gz",
}


def mnist(directory: str | os.PathLike[str] | None = None) -> Dataset:
    """MNIST as float tensors (N, 1, 28, 28), with mean 0 and deviation 1 over the training pictures.

    Args:
        directory: where ``MNIST/raw/*.gz`` lie; by default the environment's ``FADEOUT_DATA``.
    """
    directory = directory or os.environ.get("FADEOUT_DATA")
    if directory is None:
        raise ValueError("where is MNIST? Pass its directory, or set FADEOUT_DATA")
    folder = Path(directory) / "MNIST" / "raw"
    missing = [name for name in _FILES.values() if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"MNIST is incomplete: place {', '.join(missing)} in {folder}")
    parts = {part: _idx(folder / name) for part, name in _FILES.items()}
    return Dataset(
        train_x=_normalised(parts["train_x"]),
        train_y=parts["train_y"].long(),
        test_x=_normalised(parts["test_x"]),
        test_y=parts["test_y"].long(),
    )


def _normalised(pictures: Tensor) -> Tensor:
    return ((pictures.float() / 255 - 0.1307) / 0.3081).unsqueeze(1)


def _idx(path: Path) -> Tensor:
    """The idx format: two zeros, the type (8: bytes), the number of dimensions, their sizes, the values."""
    try:
        content = gzip.decompress(path.read_bytes())
        if content[:3] != b"\x00\x00\x08":
            raise ValueError("no idx file of bytes")
        dimensions = content[3]
        sizes = np.frombuffer(content, ">u4", dimensions, offset=4).astype(int)
        values = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
        return torch.from_numpy(values.reshape(sizes).copy())
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): replace it by the publisher's file") from error
