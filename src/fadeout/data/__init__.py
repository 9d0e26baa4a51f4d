"""Data sets by name."""

from fadeout.data.cifar import cifar10, cifar100, cifar100_sample
from fadeout.data.cora import cora
from fadeout.data.dataset import Dataset
from fadeout.data.digits import digits
from fadeout.data.folder import PictureFolder
from fadeout.data.imagenet import imagenet, imagenet_sample
from fadeout.data.mnist import mnist

__all__ = [
    "Dataset",
    "PictureFolder",
    "cifar10",
    "cifar100",
    "cifar100_sample",
    "cora",
    "digits",
    "imagenet",
    "imagenet_sample",
    "mnist",
]
