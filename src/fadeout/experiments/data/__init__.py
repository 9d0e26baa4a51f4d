"""Data sets by name: each loader looks in ``directory`` first, and downloads to it.

Without one, or after it, come the directories of :func:`~fadeout.experiments.data.source.search_directories`.
"""

from fadeout.experiments.data.cifar import cifar10, cifar100, cifar100_sample
from fadeout.experiments.data.cora import cora
from fadeout.experiments.data.dataset import Dataset
from fadeout.experiments.data.digits import digits
from fadeout.experiments.data.image_folder import ImageFolder
from fadeout.experiments.data.imagenet import imagenet, imagenet_sample
from fadeout.experiments.data.mnist import mnist

__all__ = [
    "Dataset",
    "ImageFolder",
    "cifar10",
    "cifar100",
    "cifar100_sample",
    "cora",
    "digits",
    "imagenet",
    "imagenet_sample",
    "mnist",
]
