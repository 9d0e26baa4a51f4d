"""ImageNet (ILSVRC2012): 1.3 million photographs in a folder for each class, read while they are needed."""

import os

from fadeout.experiments.data.download import obtain
from fadeout.experiments.data.image_folder import ImageFolder, read_folder
from fadeout.experiments.data.source import Source

IMAGENET = Source(
    name="imagenet",
    folder="imagenet",
    files={"train": "", "val": ""},
    note="it needs an account at https://image-net.org/download-images; unpack the training and validation "
    "images of ILSVRC2012 into a folder for each class (train/n01440764/*.JPEG, val/n01440764/*.JPEG)",
)
IMAGENET_SAMPLE = Source(
    name="imagenet_sample",
    folder="imagenet-sample",
    files={"train": "", "val": ""},
    note="part of ImageNet in the layout of the whole, for trials; nobody publishes it",
)


def imagenet(directory: str | os.PathLike[str] | None = None, *, size: int = 224) -> ImageFolder:
    """ImageNet: random resized crops and flips for training, the centre crop for the test.

    Images have ``size`` by ``size`` pixels. Labels are the positions of the classes in the sorted list of the
    training part's folders.
    """
    return read_folder(obtain(IMAGENET, directory), size)


def imagenet_sample(directory: str | os.PathLike[str] | None = None, *, size: int = 224) -> ImageFolder:
    """A part of ImageNet that you have put into ``imagenet-sample``, for trials."""
    return read_folder(obtain(IMAGENET_SAMPLE, directory), size)
