"""Counting what would be left: the arithmetic equals the analysis."""

import numpy as np
import pytest
import torch
from support.structured import (
    DIGIT,
    IMAGE,
    IMAGES,
    INPUTS,
    LARGER,
    NETWORKS,
    WITHOUT_NORMS,
    bind,
    library,
)

from fadeout import Channels, models

SMALL = {"lenet5", "resnet20", "smallcnn", "vit"}


def choices(bound):
    """Some channels of each layer, at least one."""
    random = np.random.default_rng(0)
    for density in (0.02, 0.1, 0.3, 0.5, 0.9):
        alive = {layer.name: random.random(layer.width) < density for layer in bound.layers}
        for mask in alive.values():
            mask[random.integers(len(mask))] = True
        yield alive


def check(bound, quick):
    cost = bound.cost
    dependencies = cost.dependencies
    assert (dependencies is not None) == quick
    for alive in choices(bound):
        counts = []
        for cost.dependencies in (dependencies, None):
            counts.append(cost.left(alive))
        assert counts[0] == counts[1]
        cost.dependencies = dependencies
        most = max(int(mask.sum()) for mask in alive.values())
        assert dependencies is None or counts[0] <= cost.at_most_left(most)


@pytest.mark.parametrize(
    "network", [*NETWORKS, "digits", *(pytest.param(n, marks=pytest.mark.slow) for n in LARGER)]
)
def test_counting_by_labels_equals_the_analysis(network):
    build, arguments = (NETWORKS | LARGER).get(network, (models.lenet5, {"by": "norm"}))
    example = DIGIT if network == "digits" else IMAGE
    for of in ("parameters",) if network in LARGER else ("parameters", "operations"):
        bound = bind(build(), Channels(example, of=of, **arguments))
        check(bound, quick=network not in ("grouped", "all of resnet", "without norms"))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SMALL else pytest.mark.slow) for name in IMAGES]
)
def test_networks_of_the_library(name):
    model, example = library(name), torch.zeros(2, *INPUTS.get(name, (3, 8, 8))).double()
    structure = Channels(example, by="norm" if name in WITHOUT_NORMS else "scale")
    check(bind(model, structure), quick=True)
