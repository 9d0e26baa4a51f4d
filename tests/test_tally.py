"""Counting what would be left: the arithmetic equals the analysis."""

import numpy as np
import pytest
from structured import DIGIT, LARGER, NETWORKS, PICTURE, bind

from fadeout import Channels, models


@pytest.mark.parametrize("network", [*NETWORKS, *LARGER, "digits"])
def test_counting_by_labels_equals_the_analysis(network):
    build, arguments = (NETWORKS | LARGER).get(network, (models.lenet5, {"by": "norm"}))
    example = DIGIT if network == "digits" else PICTURE
    for of in ("parameters",) if network in LARGER else ("parameters", "operations"):
        bound = bind(build(), Channels(example, of=of, **arguments))
        tally, random = bound._tally, np.random.default_rng(0)
        labels = tally._labels
        assert (labels is None) == (network in ("grouped", "all of resnet", "without norms"))
        for density in (0.1, 0.3, 0.5, 0.9):
            alive = {layer.name: random.random(layer.width) < density for layer in bound.layers}
            for mask in alive.values():
                mask[random.integers(len(mask))] = True
            counts = []
            for tally._labels in (labels, None):
                counts.append(tally.left(alive))
            assert counts[0] == counts[1]
