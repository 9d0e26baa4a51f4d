"""Data sets by name, as tensors in memory."""

from fadeout.data.cifar import cifar10, cifar100, cifar100_sample
from fadeout.data.cora import cora
from fadeout.data.dataset import Dataset
from fadeout.data.digits import digits
from fadeout.data.mnist import mnist

__all__ = ["Dataset", "cifar10", "cifar100", "cifar100_sample", "cora", "digits", "mnist"]
