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


def test_latents_with_one_thing_changed():
    latent = fadeout.Latent()
    for progress in (0.0, 0.3, 0.6):
        assert VARIANTS["latents settle at 0.5"].target(progress, 100) == latent.target(progress, 100)
        assert VARIANTS["latents until 0.75"].settles(progress, 100) == latent.settles(progress, 100)
    assert (
        VARIANTS["latents until 0.35"].target(0.34, 100)
        == 1
        > VARIANTS["latents until 0.75"].target(0.7, 100)
    )
    assert VARIANTS["latents from 0.05"].target(0.08, 100) > 0 == latent.target(0.08, 100)
    settled = {name: fade.settles(0.6, 100) for name, fade in VARIANTS.items() if name.startswith("latents")}
    assert [name for name, is_settled in settled.items() if is_settled] == ["latents settle at 0.5"]
    assert not VARIANTS["latents never settle"].settles(0.99, 100)
    by_ratios = VARIANTS["latents by ratios"].schedule(0.99)
    assert callable(by_ratios)  # a tenth is left in the middle of the window, and all stand still at its ends
    assert [round(by_ratios(p), 6) for p in (0.05, 0.1, 0.3, 0.5, 0.8)] == [0, 0, 0.9, 0.99, 0.99]
    weights = torch.tensor([1.0, -2.0, 4.0])
    assert VARIANTS["latents never settle"].sparse(weights, 2.0).equal(latent.sparse(weights, 2.0))
    wanted = {"by squares": 12**0.5, "under fourth roots": 240**0.25, "under a hard threshold": 4}
    for name, left in wanted.items():
        assert VARIANTS[f"latents {name}"].sparse(weights, 2.0).tolist() == [0, 0, pytest.approx(left)]
    assert VARIANTS["latents at half of the pace"].pace(0.7) == 0.5 > latent.pace(0.7)
