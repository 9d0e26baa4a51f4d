"""LAMP's share of each layer, found without a sort."""

import numpy as np
import pytest
import torch
from torch import nn

import fadeout
from fadeout import SelectiveWeightDecay, criteria
from fadeout.methods import one_shot
from fadeout.structures.layer_shares import LayerShares, count_sizes, share_out


def counted(*scores):
    return torch.stack([count_sizes(torch.as_tensor(score)) for score in scores]).numpy()


def exact(layers, k):
    """Each layer's part of the k lowest LAMP scores, by a sort of all of them."""
    scores = [criteria.lamp(layer, layer).flatten() for layer in layers]
    order = torch.cat(scores).argsort(stable=True)[:k]
    owner = torch.cat([torch.full((score.numel(),), n) for n, score in enumerate(scores)])
    return torch.bincount(owner[order], minlength=len(layers)).numpy()


@pytest.mark.parametrize("share", [0.3, 0.9, 0.98, 0.995])
def test_the_shares_are_those_of_lamp(share):
    torch.manual_seed(0)
    sizes, stds = (400, 20_000, 3000, 50_000), (1.0, 0.01, 30.0, 0.3)
    layers = [torch.randn(size) * std for size, std in zip(sizes, stds, strict=True)]
    k = round(share * sum(sizes))
    found, wanted = share_out(counted(*[layer.abs() for layer in layers]), k), exact(layers, k)
    assert found.sum() == k
    left, wanted_left = np.array(sizes) - found, np.array(sizes) - wanted
    np.testing.assert_allclose(left, wanted_left, rtol=0.02, atol=2)


@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1e4, 1e30])
def test_the_scale_of_a_layer_means_nothing(scale):
    torch.manual_seed(0)
    layers = [torch.randn(3000).abs(), torch.randn(3000).abs()]
    wanted = share_out(counted(*layers), 5000)
    np.testing.assert_allclose(share_out(counted(layers[0], layers[1] * scale), 5000), wanted, atol=30)


@pytest.mark.parametrize("k", range(9))
def test_the_sum_is_exact_with_ties(k):
    counts = counted([0.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, -torch.inf])
    found = share_out(counts, k)
    assert found.sum() == k
    if k >= 3:
        assert (found >= [1, 2]).all()  # zeros first, wherever they are, and what is gone


def test_sizes_beyond_the_bins_count_too():
    scores = torch.tensor([0.0, 1e-30, 1e-45, 3e38, 2.0, torch.inf, -torch.inf])
    assert int(count_sizes(scores).sum()) == len(scores)
    assert int(count_sizes(scores.double())[0]) == 2
    low, high = count_sizes(torch.tensor([1e-30, 1e30]).bfloat16()).nonzero().flatten().tolist()
    assert 0 < low < high


def test_between_two_looks_all_layers_lose_alike():
    shares, asked = LayerShares([100, 1000], every=10), []

    def count():
        asked.append(True)
        return counted(torch.rand(100), torch.rand(1000))

    torch.manual_seed(0)
    first = shares.find(500, count, step=0)
    assert sum(first) == 500
    kept = np.array([100, 1000]) - first
    again = shares.find(506, count, step=1)
    assert sum(again) == 506
    np.testing.assert_allclose(np.array([100, 1000]) - again, kept * 594 / 600, atol=1)
    assert len(asked) == 1
    assert sum(shares.find(600, count, step=2)) == 600  # so much more that the shares may have changed
    assert sum(shares.find(600, count, step=10)) == 600  # and after ten steps
    assert sum(shares.find(590, count, step=11)) == 590  # and where the target falls
    assert len(asked) == 4


def test_a_small_layer_is_not_emptied():
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 10))
    with torch.no_grad():
        model[1].weight.mul_(1e-6)
    assert one_shot(model, 0.99)["1.weight"].sum() == 0
    masks = one_shot(model, 0.99, criterion=criteria.lamp)
    assert masks["1.weight"].sum() == 0  # it is gone by now: what is zero goes first
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 10))
    with torch.no_grad():
        model[1].weight.mul_(1e-6)
    masks = one_shot(model, 0.99, criterion=criteria.lamp)
    assert masks["1.weight"].sum() >= 5
    assert masks.left == 110


def test_resume_between_two_looks():
    def build():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Linear(30, 5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        pruner = SelectiveWeightDecay(
            model, optimizer, sparsity=0.9, steps=1000, fade=fadeout.Latent(), criterion=criteria.lamp
        )
        return model, optimizer, pruner

    def train(model, optimizer, first, last):
        for number in range(first, last):
            torch.manual_seed(number)
            optimizer.zero_grad()
            model(torch.randn(16, 20)).square().mean().backward()
            optimizer.step()

    model, optimizer, pruner = build()
    train(model, optimizer, 0, 523)
    saved = [part.state_dict() for part in (model, optimizer, pruner)]
    saved = torch.load(_bytes(saved), weights_only=True)
    train(model, optimizer, 523, 600)
    again = build()
    for part, state in zip(again, saved, strict=True):
        part.load_state_dict(state)
    train(again[0], again[1], 523, 600)
    for name, value in model.state_dict().items():
        assert torch.equal(value, again[0].state_dict()[name]), name


def _bytes(value):
    import io

    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer
