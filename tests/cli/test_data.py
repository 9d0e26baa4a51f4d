"""``fadeout data`` and ``fadeout data get``."""

import hashlib
import importlib
import inspect

import pytest

from fadeout.cli import data as command
from fadeout.experiments import data as data_sets
from fadeout.experiments.data.source import Source

TOY = Source(
    "toy", "toy", {"a": f"md5:{hashlib.md5(b'right').hexdigest()}", "b": ""}, ("http://127.0.0.1:9/",)
)


@pytest.fixture(autouse=True)
def _places(tmp_path, monkeypatch):
    monkeypatch.delenv("FADEOUT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(importlib.import_module("fadeout.experiments.data.http"), "WAITS", ())


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
    with pytest.raises(ValueError, match=r"no data set 'zzz'; There is cifar10, cifar100"):
        command.fetch("zzz")
