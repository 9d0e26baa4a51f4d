"""Data sets: shapes, normalisation, order of batches, and what a wrong place or file gets."""

import gzip
import struct
import sys

import pytest
import torch

from fadeout.data import Dataset, digits, mnist
from fadeout.extras import MissingExtraError


def test_digits_are_split_and_normalised():
    data = digits()
    assert data.train_x.shape == (1198, 1, 8, 8)
    assert data.test_x.shape == (599, 1, 8, 8)
    assert data.train_y.dtype == torch.int64
    assert data.train_x.mean().item() == pytest.approx(0, abs=1e-5)
    assert data.train_x.std().item() == pytest.approx(1, abs=1e-5)
    # every class in both parts, in about equal numbers
    assert data.train_y.bincount().min() > 100
    assert data.test_y.bincount().min() > 50


def test_digits_name_the_extra_when_scikit_learn_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtraError, match=r"sklearn is not installed: pip install \"fadeout\[experim"):
        digits()


def test_batches_depend_on_seed_and_epoch_alone():
    numbers = torch.arange(10)
    data = Dataset(numbers.float(), numbers, numbers.float(), numbers)

    def order(epoch, seed):
        torch.rand(3)  # the global generator has no part in it
        return torch.cat([y for _, y in data.batches(3, epoch=epoch, seed=seed)]).tolist()

    assert order(0, 0) == order(0, 0)
    assert len(set(map(tuple, (order(0, 0), order(1, 0), order(0, 1), order(1, 1))))) == 4
    assert len(set(order(0, 0))) == 9 == 3 * data.steps(3)  # none twice, and no incomplete batch
    for x, y in data.batches(3, epoch=0, seed=0):
        assert torch.equal(x.long(), y)


def idx(values: bytes, *sizes: int) -> bytes:
    return gzip.compress(
        b"\x00\x00\x08" + bytes([len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes) + values
    )


@pytest.fixture
def tiny_mnist(tmp_path):
    """Three training pictures and two test pictures in the publisher's format: black, white, grey."""
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    pictures = b"".join(bytes([value]) * 784 for value in (0, 255, 51))
    (folder / "train-images-idx3-ubyte.gz").write_bytes(idx(pictures, 3, 28, 28))
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(idx(bytes([3, 1, 4]), 3))
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(idx(pictures[: 2 * 784], 2, 28, 28))
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(idx(bytes([9, 0]), 2))
    return tmp_path


def test_mnist_is_read_from_the_publishers_files(tiny_mnist, monkeypatch):
    monkeypatch.setenv("FADEOUT_DATA", str(tiny_mnist))
    for data in (mnist(tiny_mnist), mnist()):
        assert data.train_x.shape == (3, 1, 28, 28)
        assert data.test_x.shape == (2, 1, 28, 28)
        assert data.train_y.tolist() == [3, 1, 4]
        assert data.test_y.tolist() == [9, 0]
        wanted = [(value - 0.1307) / 0.3081 for value in (0.0, 1.0, 0.2)]
        assert data.train_x[:, 0, 5, 5].tolist() == pytest.approx(wanted)


def test_mnist_says_what_to_place_where(tmp_path, tiny_mnist, monkeypatch):
    monkeypatch.delenv("FADEOUT_DATA", raising=False)
    with pytest.raises(ValueError, match="set FADEOUT_DATA"):
        mnist()
    missing = tiny_mnist / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz"
    missing.unlink()
    with pytest.raises(ValueError, match=rf"place t10k-labels-idx1-ubyte.gz in {missing.parent}"):
        mnist(tiny_mnist)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not compressed",
        idx(bytes(10), 3, 28, 28),  # fewer values than the header promises
        idx(bytes(3), 3)[:-9],
        gzip.compress(b"\x00\x00\x0d\x01"),  # floating-point values
    ],
    ids=["empty", "not compressed", "too few values", "cut off", "not bytes"],
)
def test_mnist_names_a_damaged_file(tiny_mnist, content):
    path = tiny_mnist / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz is damaged .* replace it"):
        mnist(tiny_mnist)
