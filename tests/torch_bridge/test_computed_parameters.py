"""Weights that are computed from other parameters: pruned where zeros stay zeros, refused elsewhere."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import fadeout
from fadeout.methods import one_shot


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def build(model, **arguments):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return optimizer, fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.9, steps=40, **arguments)


def old_weight_norm(layer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own: there is a newer one
        return nn.utils.weight_norm(layer)


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


@pytest.mark.parametrize(
    ("computed", "blamed", "advice"),
    [
        (old_weight_norm, "weight_norm", "torch.nn.utils.remove_weight_norm(module, 'weight')"),
        (parametrizations.weight_norm, "WeightNorm", "remove_parametrizations(module, 'weight')"),
        (parametrizations.orthogonal, "Orthogonal", "remove_parametrizations(module, 'weight')"),
    ],
    ids=["old weight_norm", "weight_norm", "orthogonal"],
)
def test_refused_with_advice(computed, blamed, advice):
    model = network()
    computed(model[2])
    with pytest.raises(ValueError, match=f"{blamed} computes 'weight' of the module '2' from it") as error:
        build(model)
    assert advice in str(error.value)


@pytest.mark.parametrize("computed", [old_weight_norm, parametrizations.weight_norm])
@pytest.mark.parametrize("way", ["fold", "leave out"])
def test_the_advice_works(computed, way):
    model = network()
    computed(model[2])
    wanted = {"0.weight", "2.weight"}
    chosen = {}
    if way == "leave out":
        part = "weight_" if computed is old_weight_norm else "parametrizations"
        chosen = {"prunable": lambda name, p: p.dim() >= 2 and part not in name}
        wanted = {"0.weight"}
    elif computed is old_weight_norm:
        nn.utils.remove_weight_norm(model[2], "weight")
    else:
        parametrize.remove_parametrizations(model[2], "weight")
    _, pruner = build(model, **chosen)
    assert pruner.parameters.keys() == wanted


def test_a_symmetric_weight_is_refused():
    model = nn.Linear(4, 4)
    parametrize.register_parametrization(model, "weight", Symmetric())
    with pytest.raises(ValueError, match="Symmetric computes 'weight' of the model from it"):
        one_shot(model, 0.5)


@pytest.mark.parametrize("old", [True, False])
def test_spectral_norm_keeps_zeros(old):
    """Its quotient is one number for the whole layer."""
    model = network()
    (nn.utils.spectral_norm if old else parametrizations.spectral_norm)(model[0])
    optimizer, pruner = build(model, criterion=fadeout.criteria.lamp)
    for _ in range(40):
        optimizer.zero_grad()
        (model(torch.randn(8, 6)) - 1).square().mean().backward()
        optimizer.step()
    masks = pruner.remove()
    assert masks.left == 7
    kind = "0.weight_orig" if old else "0.parametrizations.weight.original"
    model(torch.randn(2, 6))
    assert torch.equal(model[0].weight != 0, masks[kind])


def test_a_parametrization_of_ones_own_that_keeps_zeros():
    model = network()
    parametrize.register_parametrization(model[0], "weight", Doubled())
    before = model[0].weight.clone()
    masks = one_shot(model, 0.9)
    assert torch.equal(model[0].weight, before * masks["0.parametrizations.weight.original"])


def test_active_masks_of_torch_are_not_overlooked():
    model = network()
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    with pytest.raises(ValueError, match=r"'0.weight_orig' is not a weight itself: a mask of torch.nn.utils"):
        build(model)
    masks = fadeout.Masks.from_torch_prune(model)  # as the message says
    prune.remove(model[0], "weight")
    optimizer, _ = build(model)
    masks.hold(model, optimizer)
    assert masks.left == 24
    assert int(model[0].weight.count_nonzero()) == 24
