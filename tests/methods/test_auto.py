"""Fadeout's own fades as methods: each builds the pruner that its name says."""

import pytest
import torch
from torch import nn

import fadeout
from fadeout import criteria
from fadeout.methods.auto import auto, latent, progressive


def _network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))


@pytest.mark.parametrize(
    ("phases", "structure", "fade"),
    [
        (auto, fadeout.Elements(), "Latent()"),
        (auto, fadeout.Channels(torch.zeros(2, 1, 8, 8)), "Progressive()"),
        (latent, fadeout.Channels(torch.zeros(2, 1, 8, 8)), "Latent()"),
        (progressive, fadeout.Elements(), "Progressive()"),
    ],
)
def test_the_fade_is_the_structures_own_or_the_one_that_the_method_names(phases, structure, fade):
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (phase,) = phases(3, 0.5)
    pruner = phase.pruner(model, optimizer, steps=10, structure=structure)
    assert (phase.epochs, phase.restart) == (3, True)
    assert pruner.final_sparsity == 0.5
    assert f"fade       {fade}" in repr(pruner)


def test_the_default_chooses_its_criterion_and_the_others_are_told():
    def criterion(phases, **options):
        model = _network()
        (phase,) = phases(1, 0.5, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return phase.pruner(model, optimizer, steps=10, structure=fadeout.Elements()).criterion

    assert criterion(auto) is criteria.lamp  # the network has a norm
    assert criterion(latent) is criteria.magnitude
    assert criterion(progressive, criterion="lamp") is criteria.lamp
