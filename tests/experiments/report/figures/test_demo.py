"""The demo's two panels, of numbers made up."""

import re
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch

from fadeout.experiments.demo.fading import Fading
from fadeout.experiments.report.figures.demo import COLOURS, panels, write_figure


@pytest.fixture(scope="module")
def outcomes():
    best = {"one-shot": 60.0, "iterative": 95.0, "fadeout": 97.0}
    made = [SimpleNamespace(method="dense", sparsity=0.0, final=98.0)]
    for method, top in best.items():
        made += [SimpleNamespace(method=method, sparsity=s, final=top - 10 * s) for s in (0.9, 0.99)]
    return made


@pytest.fixture(scope="module")
def fading():
    weights = torch.linspace(-1, 1, 100)
    stays = weights.abs() > 0.9
    return Fading.of(0.9, [weights, torch.where(stays, weights, 1e-3 * weights), weights * stays], stays)


def test_panels_have_the_colours_of_roles(outcomes, fading):
    for svg in panels(outcomes, fading):
        assert ElementTree.fromstring(re.sub(r"xlink:", "", svg)).tag == "svg"
        assert not re.search(r"#[0-9a-f]{6}\b", svg)
        assert all(f"var(--{role})" in svg for role in ("fadeout", "soft", "paper"))
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_panels_say_what_they_show(outcomes, fading):
    accuracies, ridges = panels(outcomes, fading)
    for text in ("dense", "fadeout", "iterative", "one-shot", "10 %", "1 %"):
        assert f">{text}</text>" in accuracies
    for text in ("90 % have faded away", "10 % stay", "How 90 % of the weights fade"):
        assert f">{text}</text>" in ridges


def test_the_figure_is_written_twice(tmp_path, outcomes, fading):
    write_figure(tmp_path, outcomes, fading)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure.png", "figure.svg"]
