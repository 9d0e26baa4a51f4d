"""Data sets by name, as tensors in memory."""

from fadeout.data.dataset import Dataset
from fadeout.data.digits import digits
from fadeout.data.mnist import mnist

__all__ = ["Dataset", "digits", "mnist"]
