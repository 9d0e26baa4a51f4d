"""Variants of the fades: each changes what it says."""

import pytest
import torch
from torch import nn

import fadeout
from fadeout.experiments.run import Run
from fadeout.methods.swd import swd
from fadeout.methods.variants import VARIANTS, growing_decay


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
    with pytest.raises(ValueError, match="no fade 'faster'; there are growing target, target from 0"):
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
    for fade, middle in ((VARIANTS["latents by a cubic"], 0.875 * 0.99), (latent, 0.9)):
        targets = [fade.targeted(0.99, fade.target(p - 0.01, 100)) for p in (0.05, 0.1, 0.3, 0.5, 0.8)]
        assert targets == pytest.approx([0, 0, middle, 0.99, 0.99])
    weights = torch.tensor([1.0, -2.0, 4.0])
    assert VARIANTS["latents never settle"].sparse(weights, 2.0).equal(latent.sparse(weights, 2.0))
    wanted = {"by squares": 12**0.5, "under fourth roots": 240**0.25, "under a hard threshold": 4}
    for name, left in wanted.items():
        assert VARIANTS[f"latents {name}"].sparse(weights, 2.0).tolist() == [0, 0, pytest.approx(left)]
    assert VARIANTS["latents at half of the pace"].pace(0.7) == 0.5 > latent.pace(0.7)


@pytest.mark.parametrize(("method", "faded"), [(swd, [1, 2]), (growing_decay, [1, 2, 3, 4])])
def test_a_growing_decay_takes_what_would_stay_as_well(method, faded):
    model = nn.Linear(4, 1, bias=False)
    start = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    model.weight.data.copy_(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (phase,) = method(1, 0.5, "linear", "none", "elements", a_min=1.0, a_max=1.0, mu=2.0)
    assert phase.pruner is not None
    phase.pruner(model, optimizer, steps=10)
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    left = torch.where(torch.isin(start, torch.tensor(faded)), 0.8 * start, start)  # 1 - lr a mu
    torch.testing.assert_close(model.weight.detach(), left)


def test_a_growing_decay_without_published_strengths_must_be_given_some():
    with pytest.raises(ValueError, match="names no strength for linear on none, elements: pass --a-min"):
        growing_decay(1, 0.5, "linear", "none", "elements")
