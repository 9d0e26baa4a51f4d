"""Digits: split and normalised, as scikit-learn has them."""

import sys

import pytest
import torch

from fadeout._checks import MissingExtraError
from fadeout.experiments.data import digits


def test_they_are_split_and_normalised():
    data = digits()
    assert data.train_x.shape == (1198, 1, 8, 8)
    assert data.test_x.shape == (599, 1, 8, 8)
    assert data.train_y.dtype == torch.int64
    assert data.train_x.mean().item() == pytest.approx(0, abs=1e-5)
    assert data.train_x.std().item() == pytest.approx(1, abs=1e-5)
    # every class in both parts, in about equal numbers
    assert data.train_y.bincount().min() > 100
    assert data.test_y.bincount().min() > 50
    assert data.num_classes == 10
    assert data.example.shape == (1, 1, 8, 8)


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtraError, match=r"sklearn is not installed: pip install \"fadeout\[experim"):
        digits()


def test_every_third_image_is_for_the_test():
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    rest = [number for number in range(len(images)) if number % 3]
    data, mean, std = digits(), images[rest].mean(), images[rest].std(ddof=1)
    for x, y, which in ((data.train_x, data.train_y, rest), (data.test_x, data.test_y, range(0, 1797, 3))):
        assert y.tolist() == labels[which].tolist()
        wanted = torch.as_tensor((images[which] - mean) / std).float()
        torch.testing.assert_close(x.flatten(1), wanted, atol=1e-5, rtol=0)
