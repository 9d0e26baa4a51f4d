"""CIFAR-10 and CIFAR-100: 60,000 colour images of 32 by 32 pixels, in the publisher's pickles."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fadeout.experiments.data import pickles
from fadeout.experiments.data.dataset import Dataset
from fadeout.experiments.data.download import obtain
from fadeout.experiments.data.images import crop_and_flip, normalise
from fadeout.experiments.data.source import Source

CIFAR10 = Source(
    name="cifar10",
    folder="cifar-10-batches-py",
    files={
        "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
        "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
        "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "md5:40351d587109b95175f43aff81a1287e",
        "batches.meta": "md5:5ff9c542aee3614f3951f8cda6e48888",
    },
    urls=("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/"),
    archive=("cifar-10-python.tar.gz", "md5:c58f30108f718f92721af3b95e74349a"),
)
CIFAR100 = Source(
    name="cifar100",
    folder="cifar-100-python",
    files={
        "train": "md5:16019d7e3df5f24257cddd939b257f8d",
        "test": "md5:f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "md5:7973b15100ade9c7d40fb424638fde48",
    },
    urls=("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/"),
    archive=("cifar-100-python.tar.gz", "md5:eb9058c3a382ffc7106e4002c42a8d85"),
)
CIFAR100_SAMPLE = Source(
    name="cifar100_sample",
    folder="cifar-100-sample",
    files={"train": "", "test": ""},
    note="part of CIFAR-100 in the format of the whole, for trials; nobody publishes it",
)

_NORMALISE_10 = normalise((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
_NORMALISE_100 = normalise((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


def cifar10(directory: str | os.PathLike[str] | None = None) -> Dataset:
    """CIFAR-10 as bytes (N, 3, 32, 32), normalised by the batch, cropped and flipped for training."""
    return _load(CIFAR10, directory, b"labels", 10, _NORMALISE_10)


def cifar100(directory: str | os.PathLike[str] | None = None) -> Dataset:
    """CIFAR-100 as bytes (N, 3, 32, 32), with its 100 fine labels, and otherwise like CIFAR-10."""
    return _load(CIFAR100, directory, b"fine_labels", 100, _NORMALISE_100)


def cifar100_sample(directory: str | os.PathLike[str] | None = None) -> Dataset:
    """A part of CIFAR-100 that you have put into ``cifar-100-sample``, for trials."""
    return _load(CIFAR100_SAMPLE, directory, b"fine_labels", 100, _NORMALISE_100)


def _load(
    source: Source, directory: Any, key: bytes, classes: int, prepare: Callable[..., Tensor]
) -> Dataset:
    folder, parse = obtain(source, directory), partial(_parse, key=key, classes=classes)
    *train, test = (source.read(folder, name, parse) for name in source.files if "meta" not in name)
    images, labels = map(torch.cat, zip(*train, strict=True))
    return Dataset(images, labels, *test, prepare=prepare, augment=crop_and_flip)


def _parse(content: bytes, key: bytes, classes: int) -> tuple[Tensor, Tensor]:
    """The images and labels of a batch file."""
    batch = pickles.load(content)
    if not isinstance(batch, dict) or not {b"data", key} <= batch.keys():
        raise ValueError(f"no dictionary with data and {key.decode()}")
    images, labels = batch[b"data"], batch[key]
    # lists that share their parts are small in a pickle, and an array of them as large as it likes
    if isinstance(labels, list | tuple) and not all(type(label) is int for label in labels):
        raise ValueError(f"labels that are not 0 to {classes - 1}")
    labels = np.asarray(labels)
    if getattr(images, "dtype", None) != np.uint8 or images.shape != (*labels.shape, 3 * 32 * 32):
        raise ValueError("no images of 3 by 32 by 32 bytes, as many as labels")
    if labels.dtype.kind != "i" or labels.min(initial=0) < 0 or labels.max(initial=0) >= classes:
        raise ValueError(f"labels that are not 0 to {classes - 1}")
    return torch.from_numpy(images.reshape(-1, 3, 32, 32).copy()), torch.from_numpy(labels).long()
