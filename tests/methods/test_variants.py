"""Variants of the default fade: each changes what it says."""

import pytest
import torch

import fadeout
from fadeout.experiments.run import Run
from fadeout.methods.variants import VARIANTS


def built(name):
    """The pruner of a variant on a small network."""
    model = fadeout.models.smallcnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = Run(method="variant", fade=name, sparsity=0.8).phases()[0].pruner
    return pruner(model, optimizer, steps=10, structure=fadeout.Elements())


def test_a_variant_changes_one_thing():
    default = fadeout.Progressive()
    for progress in (0.0, 0.3, 0.7, 0.8):
        assert VARIANTS["growing target"].dose(progress, 100, {}) == default.dose(progress, 100, {})
        assert VARIANTS["no fade"].dose(progress, 100, {}) == torch.inf
    targets = {name: built(name).sparsity for name in VARIANTS}
    assert [targets["growing target"](p) for p in (0.1, 0.75, 1)] == pytest.approx([0, 0.8, 0.8])
    assert [targets["linear target"](p) for p in (0.1, 0.425, 1)] == pytest.approx([0, 0.4, 0.8])
    assert [targets["full target"](p) for p in (0, 1)] == [0.8, 0.8]
    assert targets["target from 0 until 0.4"](0.4) == 0.8 == targets["target until 0.6"](0.6)
    assert VARIANTS["zero from 0.9"].dose(0.8, 100, {}) < torch.inf
    assert VARIANTS["first rate 1"].dose(-0.01, 100, {}) == pytest.approx(0.01)
    with pytest.raises(ValueError, match="no fade 'faster'; there is growing target, target from 0"):
        Run(method="variant", fade="faster")
