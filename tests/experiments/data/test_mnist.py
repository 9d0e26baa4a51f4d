"""MNIST: the publisher's idx files, and what a wrong directory or file gets."""

import gzip
import importlib
import os
import struct
from dataclasses import replace

import pytest

from fadeout.experiments.data import mnist

module = importlib.import_module("fadeout.experiments.data.mnist")


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch, request):
    """The source without checksums and addresses, for files of our own."""
    if "real" not in request.node.name:
        source = replace(module.MNIST, files=dict.fromkeys(module.MNIST.files, ""), urls=())
        monkeypatch.setattr(module, "MNIST", source)


def idx(values: bytes, *sizes: int) -> bytes:
    return gzip.compress(
        b"\x00\x00\x08" + bytes([len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes) + values
    )


@pytest.fixture
def tiny_mnist(tmp_path):
    """Three training images and two test images in the publisher's format: black, white, grey."""
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    images = b"".join(bytes([value]) * 784 for value in (0, 255, 51))
    (folder / "train-images-idx3-ubyte.gz").write_bytes(idx(images, 3, 28, 28))
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(idx(bytes([3, 1, 4]), 3))
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(idx(images[: 2 * 784], 2, 28, 28))
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


def test_mnist_says_what_to_place_where(tiny_mnist, monkeypatch):
    monkeypatch.delenv("FADEOUT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tiny_mnist / "cache"))
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
        gzip.compress(b"\x00\x00\x08"),
        idx(bytes(3), 3)[:12] + b"\xff" * 20,
    ],
    ids=["empty", "not compressed", "too few values", "cut off", "not bytes", "header only", "no deflate"],
)
def test_mnist_names_a_damaged_file(tiny_mnist, content):
    path = tiny_mnist / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz is damaged .* replace it"):
        mnist(tiny_mnist)


def test_an_altered_file_of_the_real_mnist_is_named(tiny_mnist):
    path = tiny_mnist / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    with pytest.raises(ValueError, match=rf"{path} is not .* expected f68b3c2dcbeaaa9fbdd348bbdeb94873"):
        mnist(tiny_mnist)


@pytest.mark.skipif(not os.environ.get("FADEOUT_DATA"), reason="set FADEOUT_DATA to a folder with data")
def test_the_real_mnist():
    data = mnist()
    assert data.train_x.shape == (60_000, 1, 28, 28)
    assert data.test_x.shape == (10_000, 1, 28, 28)
    assert data.train_y[:5].tolist() == [5, 0, 4, 1, 9]
    assert data.train_x.mean().item() == pytest.approx(0, abs=1e-3)
    assert data.train_x.std().item() == pytest.approx(1, abs=1e-3)
    assert data.num_classes == 10
