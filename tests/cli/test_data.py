"""``fadeout data`` and ``fadeout data get``."""

import gzip
import hashlib
import importlib
import inspect
import pickle
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.file_server import archive, md5, serving

from fadeout import models
from fadeout.cli import data as command
from fadeout.experiments import data as data_sets
from fadeout.experiments.data.source import Source

TOY = Source(
    "toy", "toy", {"a": f"md5:{hashlib.md5(b'right').hexdigest()}", "b": ""}, ("http://127.0.0.1:9/",)
)


@pytest.fixture(autouse=True)
def _directories(tmp_path, monkeypatch):
    monkeypatch.delenv("FADEOUT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(importlib.import_module("fadeout.experiments.data.download"), "WAITS", ())


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setattr(command, "sources", lambda: {"toy": TOY, "inside": None})


def test_every_data_set_is_listed_by_its_name_in_the_code():
    known = command.sources()
    functions = {name for name in data_sets.__all__ if inspect.isfunction(getattr(data_sets, name))}
    assert set(known) == functions >= {"mnist", "cifar10", "cifar100", "imagenet", "digits"}
    for name, source in known.items():
        assert (source is None) == (name == "digits")
        assert source is None or source.name == name


def test_what_is_there_and_what_is_not(toy, tmp_path, capsys):
    def listed():
        command.show(str(tmp_path))
        return capsys.readouterr().out

    out = listed()
    assert f"looked for in {tmp_path}, then {tmp_path / 'cache' / 'fadeout'}" in out
    assert "toy     not here; fadeout data get toy" in out
    assert "inside  comes with an installed package" in out
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "a").write_bytes(b"right")
    assert f"incomplete: {folder} lacks b; fadeout data get toy" in listed()
    (folder / "b").write_bytes(b"x" * 1_500_000)
    assert f"toy     1.5 MB in {folder}" in listed()
    (folder / "a").write_bytes(b"wrong")
    assert f"damaged: {folder / 'a'} is not the publisher's file" in listed()


def test_folders_are_counted_by_class(tmp_path, capsys):
    for name in ("train/n01", "train/n02", "val/n01"):
        (tmp_path / "imagenet" / name).mkdir(parents=True)
    command.show(str(tmp_path))
    assert f"2 classes in train, 1 classes in val in {tmp_path / 'imagenet'}" in capsys.readouterr().out


def test_get_leaves_what_is_there_and_names_what_is_wrong(toy, tmp_path, capsys):
    with pytest.raises(ValueError, match=rf"could not be downloaded .*place a, b in {tmp_path / 'toy'}"):
        command.fetch("toy", str(tmp_path))
    (tmp_path / "toy").mkdir()
    for name in ("a", "b"):
        (tmp_path / "toy" / name).write_bytes(b"right")
    command.fetch("toy", str(tmp_path))
    command.fetch("inside")
    assert capsys.readouterr().out.splitlines() == [
        f"toy: 0.0 MB in {tmp_path / 'toy'}",
        "inside: comes with an installed package",
    ]
    (tmp_path / "toy" / "a").write_bytes(b"wrong")
    with pytest.raises(ValueError, match="left in place"):
        command.fetch("toy", str(tmp_path))


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(ValueError, match="no data set 'cifar-10'; did you mean cifar10"):
        command.fetch("cifar-10")
    with pytest.raises(ValueError, match=r"no data set 'zzz'; there are cifar10, cifar100"):
        command.fetch("zzz")


# From an empty directory to a training step ---------------------------------------------------------------

DRAW = np.random.default_rng(0)


def idx(values: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return gzip.compress(header + values.tobytes())


def cifar_batch(key: bytes, classes: int) -> bytes:
    images = DRAW.integers(0, 256, (20, 3072), dtype=np.uint8)
    return pickle.dumps({b"data": images, key: DRAW.integers(0, classes, 20).tolist()}, protocol=2)


def cora_files() -> dict[str, bytes]:
    words = DRAW.integers(0, 2, (600, 8))
    rows = [f"{100 + n}\t" + "\t".join(map(str, row)) + f"\tField_{n % 7}" for n, row in enumerate(words)]
    links = [f"{100 + n}\t{100 + (n * 7) % 600}" for n in range(600)]
    return {"cora.content": "\n".join(rows).encode(), "cora.cites": "\n".join(links).encode()}


SMALL = {  # each data set's files, a few inputs in each, in the publishers' formats
    "mnist": {
        "train-images-idx3-ubyte.gz": idx(DRAW.integers(0, 256, (20, 28, 28), dtype=np.uint8)),
        "train-labels-idx1-ubyte.gz": idx(DRAW.integers(0, 10, 20, dtype=np.uint8)),
        "t10k-images-idx3-ubyte.gz": idx(DRAW.integers(0, 256, (5, 28, 28), dtype=np.uint8)),
        "t10k-labels-idx1-ubyte.gz": idx(DRAW.integers(0, 10, 5, dtype=np.uint8)),
    },
    "cifar10": {f"data_batch_{n}": cifar_batch(b"labels", 10) for n in range(1, 6)}
    | {"test_batch": cifar_batch(b"labels", 10), "batches.meta": pickle.dumps({}, 2)},
    "cifar100": {
        "train": cifar_batch(b"fine_labels", 100),
        "test": cifar_batch(b"fine_labels", 100),
        "meta": pickle.dumps({}, 2),
    },
    "cora": cora_files(),
}
NETWORKS = {
    "mnist": models.lenet5,
    "cifar10": lambda: models.resnet20(10, width=4),
    "cifar100": lambda: models.resnet20(100, width=4),
    "cora": lambda: models.gcn(num_classes=7, width=4, features=8),
}


@pytest.fixture
def publisher(monkeypatch):
    """A server that hands out the small files as their publishers do the large ones."""
    with serving() as server:
        for name, files in SMALL.items():
            module = importlib.import_module(getattr(data_sets, name).__module__)
            source: Source = getattr(module, name.upper())
            assert set(files) == set(source.files)
            source = replace(source, urls=(server.url,), files={f: md5(c) for f, c in files.items()})
            if source.archive is None:
                server.files |= files
            else:
                archive_name, checksum = source.archive
                packed = archive({f"{source.folder}/{file}": content for file, content in files.items()})
                server.files[archive_name] = packed
                source = replace(source, archive=(archive_name, checksum and md5(packed)))
            monkeypatch.setattr(module, name.upper(), source)
        yield server


def test_the_small_files_are_of_all_that_can_be_downloaded():
    assert set(SMALL) == {name for name, source in command.sources().items() if source and source.urls}


@pytest.mark.parametrize("name", SMALL)
def test_from_an_empty_directory_to_a_training_step(name, publisher, run, tmp_path):
    directory = tmp_path / "data"
    code, printed, _ = run("data", "get", name, "--data-dir", str(directory))
    assert code == 0
    assert printed.startswith(f"{name}: 0.")
    folder = directory / command.sources()[name].folder
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == SMALL[name]
    assert [path.name for path in directory.iterdir()] == [folder.relative_to(directory).parts[0]]
    asked = len(publisher.requests)
    data, model = getattr(data_sets, name)(directory), NETWORKS[name]()
    assert len(publisher.requests) == asked
    x, y = next(iter(data.batches(10, epoch=0, seed=0)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    loss = F.cross_entropy(model(*x) if isinstance(x, tuple) else model(x), y)
    loss.backward()
    optimizer.step()
    assert loss.isfinite()
    assert not any(map(torch.equal, before[:1], model.parameters()))


@pytest.mark.parametrize("name", SMALL)
def test_a_captive_portals_page_is_refused_and_forgotten(name, publisher, run, tmp_path):
    served, page = publisher.files, b"<html>Welcome! Please log in.</html>"
    publisher.files = dict.fromkeys(served, page)
    for _ in range(2):
        code, _, complaint = run("data", "get", name, "--data-dir", str(tmp_path))
        assert code == 2
        assert f"{name} is not here, and could not be downloaded" in complaint
        assert not list(tmp_path.rglob("*.*z"))
    publisher.files = served
    assert run("data", "get", name, "--data-dir", str(tmp_path))[0] == 0
