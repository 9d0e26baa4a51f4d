"""The histograms of the demo's second panel, by hand."""

import torch

from fadeout.experiments.demo.fading import Fading


def test_histograms_by_hand():
    weights = torch.tensor([0.0, 1e-30, 1.1e-5, -0.3, 1e9])
    fading = Fading.of(0.6, [weights], torch.tensor([False, False, False, True, True]))
    at = {round(centre, 4): number for number, centre in enumerate(fading.centres)}
    assert fading.goes[0][0] == 2
    assert sum(fading.goes[0]) == 3
    assert fading.goes[0][at[-4.9375]] == 1
    assert fading.stays[0][at[-0.5625]] == 1  # log10(0.3) = -0.523
    assert fading.stays[0][-1] == 1


def test_histograms_hold_every_weight():
    weights = torch.linspace(-1, 1, 100)
    stays = weights.abs() > 0.9
    fading = Fading.of(0.9, [weights, torch.where(stays, weights, 1e-3 * weights), weights * stays], stays)
    assert [sum(row) for row in fading.stays] == [10] * 3
    assert [sum(row) for row in fading.goes] == [90] * 3
    assert fading.goes[-1][0] == 90  # exact zeros are in the first bin
