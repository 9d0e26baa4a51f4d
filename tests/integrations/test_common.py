"""What all integrations share, and what is said where their packages are missing or too old."""

import doctest
import importlib
import importlib.util
import sys
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest
import torch

import fadeout
from fadeout._checks import MissingExtraError
from fadeout.integrations import common


def test_docstrings():
    assert doctest.testmod(common) == (0, 4)


@pytest.fixture
def load(monkeypatch):
    """Import an integration as if its package had this version, or none."""

    def run(name, version):
        def look(package):
            if version is None:
                raise PackageNotFoundError(package)
            return version

        monkeypatch.setattr(common, "version", look)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: version)
        monkeypatch.delitem(sys.modules, f"fadeout.integrations.{name}", raising=False)
        return importlib.import_module(f"fadeout.integrations.{name}")

    return run


@pytest.mark.parametrize("name", ["lightning", "transformers", "ultralytics"])
def test_without_its_package_the_extra_is_named(load, name):
    with pytest.raises(MissingExtraError, match=rf'is not installed: pip install "fadeout\[{name}\]"'):
        load(name, None)


@pytest.mark.parametrize(
    ("name", "old", "needed"),
    [
        ("lightning", "1.9.5", "lightning 2.2"),
        ("transformers", "4.30.1", "transformers 4.45"),
        ("ultralytics", "8.0.1", "ultralytics 8.3"),
    ],
)
def test_a_version_that_is_too_old(load, name, old, needed):
    with pytest.raises(ImportError, match=rf"{needed} or newer is needed, and this is {old}: pip install"):
        load(name, old)


def test_others_that_there_are_not():
    with pytest.raises(AttributeError, match="lightning, transformers, ultralytics; not 'keras'"):
        _ = fadeout.integrations.keras


def test_a_dense_run_ends_as_others_do():
    network = torch.nn.Linear(2, 2)
    pruner: Any = fadeout.NoPruning(network, None, sparsity=0.5, steps=1)
    assert common.is_of(pruner, network)
    assert common.finish(pruner) == fadeout.Masks({})
