"""CIFAR: the publisher's pickles, made small and real."""

import importlib
import os
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from fadeout.experiments.data import cifar10, cifar100, cifar100_sample

cifar = importlib.import_module("fadeout.experiments.data.cifar")


def batch(path, count, key, classes, protocol=2):
    draw = np.random.default_rng(len(path.name))
    content = {
        b"data": draw.integers(0, 256, (count, 3072), dtype=np.uint8),
        key: [number % classes for number in range(count)],
        b"filenames": [b"a.png"] * count,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol))
    return content


@pytest.fixture
def unchecked(monkeypatch):
    """The sources without checksums and addresses, for files of our own."""
    for name in ("CIFAR10", "CIFAR100"):
        source = getattr(cifar, name)
        monkeypatch.setattr(cifar, name, replace(source, files=dict.fromkeys(source.files, ""), urls=()))


def test_cifar10_joins_its_batches(unchecked, tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    parts = [batch(folder / f"data_batch_{n}", 10 + n, b"labels", 10) for n in range(1, 6)]
    test = batch(folder / "test_batch", 7, b"labels", 10)
    (folder / "batches.meta").write_bytes(b"")
    data = cifar10(tmp_path)
    assert data.train_x.shape == (65, 3, 32, 32)
    assert data.train_x.dtype == torch.uint8
    assert data.train_y.tolist() == [label for part in parts for label in part[b"labels"]]
    assert (data.train_x[11:23].numpy() == parts[1][b"data"].reshape(-1, 3, 32, 32)).all()
    assert (data.test_x.numpy() == test[b"data"].reshape(-1, 3, 32, 32)).all()
    ((x, y),) = data.batches(64, epoch=0, seed=0)
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64


def test_cifar100_reads_fine_labels(unchecked, tmp_path):
    folder = tmp_path / "cifar-100-python"
    for name, count in (("train", 200), ("test", 100), ("meta", 1)):
        batch(folder / name, count, b"fine_labels", 100)
    data = cifar100(tmp_path)
    assert data.num_classes == 100
    assert data.test_y.tolist() == list(range(100))


def nested(depth):
    """2 ** depth labels in a few bytes."""
    shared = [1, 1]
    for _ in range(depth - 1):
        shared = [shared, shared]
    return shared


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (pickle.dumps(os.system), "no use for"),
        (pickle.dumps([1, 2], 2), "no dictionary with data and fine_labels"),
        (
            pickle.dumps({b"data": np.zeros((1, 3072), np.uint8)}, 2),
            "no dictionary with data and fine_labels",
        ),
        (pickle.dumps({b"data": [1], b"fine_labels": [1]}, 2), "no images of 3 by 32 by 32 bytes"),
        (pickle.dumps({b"data": np.zeros((1, 9), np.uint8), b"fine_labels": [1]}, 2), "no images of 3 by"),
        (pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [1]}, 2), "as many as labels"),
        (pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"fine_labels": [100]}, 2), "not 0 to 99"),
        (pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"fine_labels": ["a"]}, 2), "not 0 to 99"),
        (pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"fine_labels": 3}, 2), "as many as labels"),
        (pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"fine_labels": [[1], 2]}, 2), "damaged"),
        (
            pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": nested(31)}, 2),
            "not 0 to 99",
        ),
        (b"\x80\x02", "damaged"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, content, problem):
    folder = tmp_path / "cifar-100-sample"
    batch(folder / "test", 3, b"fine_labels", 100)
    (folder / "train").write_bytes(content)
    with pytest.raises(ValueError, match=rf"{folder / 'train'} is damaged \(.*") as error:
        cifar100_sample(tmp_path)
    assert problem in str(error.value)


def test_an_altered_file_is_refused_before_it_is_read(tmp_path):
    folder = tmp_path / "cifar-100-python"
    for name in ("train", "test", "meta"):
        batch(folder / name, 3, b"fine_labels", 100)
    expected = cifar.CIFAR100.files["train"].removeprefix("md5:")
    with pytest.raises(
        ValueError, match=rf"{folder / 'train'} is not the publisher's file: .* expected {expected}"
    ):
        cifar100(tmp_path)


# Real data ------------------------------------------------------------------------------------------

needs_data = pytest.mark.skipif(
    not os.environ.get("FADEOUT_DATA"), reason="set FADEOUT_DATA to a folder with data"
)


@needs_data
def test_cifar10_is_the_real_one():
    data = cifar10()
    assert data.train_y.bincount().tolist() == [5000] * 10
    assert data.test_y.bincount().tolist() == [1000] * 10
    assert data.train_y[:5].tolist() == [6, 9, 9, 4, 1]  # frog, truck, truck, deer, car
    x = data.prepare(data.train_x[::10])
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3), atol=0.02, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3)), torch.ones(3), atol=0.02, rtol=0)
    x, _ = next(iter(data.batches(128, epoch=0, seed=0, first=200)))
    assert x.shape == (128, 3, 32, 32)


@needs_data
def test_the_sample_of_cifar100():
    data = cifar100_sample()
    assert data.num_classes == 100
    assert data.train_x.dtype == torch.uint8
    assert data.validation().test_y.bincount().tolist() == [2] * 100
