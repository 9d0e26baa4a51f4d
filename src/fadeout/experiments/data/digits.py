"""Digits: 1,797 handwritten digits of 8 by 8 pixels, which scikit-learn carries in itself."""

import torch

from fadeout._checks import extra
from fadeout.experiments.data.dataset import Dataset


def digits() -> Dataset:
    """Digits as float tensors (N, 1, 8, 8), with mean 0 and std 1 over the training images.

    Every third image is for the test: 599 of them, and 1,198 for training.

    >>> data = digits()
    >>> tuple(data.train_x.shape), tuple(data.test_x.shape)
    ((1198, 1, 8, 8), (599, 1, 8, 8))
    """
    with extra("experiments"):
        from sklearn.datasets import load_digits
    images, labels = load_digits(return_X_y=True)
    x, y = torch.as_tensor(images).float().view(-1, 1, 8, 8), torch.as_tensor(labels).long()
    test = torch.arange(len(x)) % 3 == 0
    x = (x - x[~test].mean()) / x[~test].std()
    return Dataset(x[~test], y[~test], x[test], y[test])
