"""ST-3: the network runs on soft-thresholded and rescaled weights, and gradients reach all dense ones."""

import pytest
import torch
from torch import nn

from fadeout import Channels
from fadeout.methods import ST3
from fadeout.schedules import cubic


def soft(latent, k):
    """As the authors' layer does it: the ``k`` lowest of one layer's weights go."""
    size = latent.abs()
    threshold = size.flatten().sort().values[k - 1]
    stays = size > threshold
    share = ((size * stays).mean(1, keepdim=True) + 1e-6) / (size.mean(1, keepdim=True) + 1e-6)
    return 1.01 / (share + 0.01) * (latent - latent.sign() * threshold) * stays


def test_it_is_sgd_on_latents_by_gradients_of_their_sparse_form():
    torch.manual_seed(0)
    model, wanted = nn.Linear(30, 20, bias=False).double(), torch.randn(20, 30).double()
    latent, grow = model.weight.detach().clone(), cubic(1.0, window=(0.05, 0.5))
    weight = latent
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = ST3(model, optimizer, sparsity=0.9, steps=60)
    for number in range(60):
        optimizer.zero_grad()
        ((model.weight - wanted).square().sum() / 2).backward()
        optimizer.step()
        latent = latent - 0.1 * (weight - wanted)  # straight through: all of them
        k = round(0.9 * grow(number / 60 + 1 / 60) * 600)
        weight = soft(latent, k) if k else latent
        torch.testing.assert_close(model.weight.detach(), weight)
        torch.testing.assert_close(pruner.state_dict()["latents"]["weight"], latent)
        assert int((model.weight == 0).sum()) == k
    before = model.weight.detach().clone()
    assert pruner.fade == 0
    assert pruner.remove().left == 60
    assert torch.equal(model.weight, before)


def test_the_target_grows_from_a_twentieth_to_the_half_of_the_training(make_task, train):
    task = make_task("matrices")
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.1)
    pruner = ST3(task.model, optimizer, sparsity=0.75, steps=100)
    zeros = []
    count = lambda step: zeros.append(sum(int((p == 0).sum()) for p in task.model.parameters()))  # noqa: E731
    train(task, optimizer, 100, after=count)
    assert zeros[:5] == [0] * 5
    assert zeros == sorted(zeros)
    assert zeros[48] <= 54
    assert zeros[49:] == [54] * 51
    assert pruner.remove().left == 18


def test_by_hand(bare, push):
    """Of 4, -3, 2, 1 and 5, 6, 1, 1 the lower half is below 3: rows of 1 and 2, 3, times their scales."""
    model = bare(w=[[4.0, -3.0, 2.0, 1.0], [5.0, 6.0, 1.0, 1.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    pruner = ST3(model, optimizer, sparsity=5 / 8, steps=1)
    push(model, optimizer, w=torch.ones(2, 4))
    first, second = 1.01 / (0.01 + 4 / 10), 1.01 / (0.01 + 11 / 13)
    expected = torch.tensor([[first * 1, 0, 0, 0], [second * 2, second * 3, 0, 0]])
    torch.testing.assert_close(model.w.detach(), expected)
    assert pruner.state_dict()["latents"]["w"].tolist() == [[4, -3, 2, 1], [5, 6, 1, 1]]


def test_a_weight_that_was_zero_comes_back_without_a_jump(bare, push):
    model = bare(w=[[4.0, 2.0, 1.0, 0.5]])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    pruner = ST3(model, optimizer, sparsity=0.5, steps=2)
    push(model, optimizer)
    push(model, optimizer, w=[[0.0, 0.0, -0.9, 0.0]])
    assert model.w.detach().sign().tolist() == [[1, 1, 0, 0]]
    with pytest.warns(UserWarning, match="more steps"):
        push(model, optimizer, w=[[0.0, 0.0, -0.2, 0.0]])  # its latent is now 2.1, just above the others
    assert model.w.detach().sign().tolist() == [[1, 0, 1, 0]]
    assert 0 < model.w[0, 2].item() < 0.2
    assert pruner.remove().left == 2


def test_gradients_of_empty_rows_go_straight_through():
    """As published: what Latent() does to rows of which nothing is left, before a norm, is its own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 2, bias=False), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
    with torch.no_grad():
        model[0].weight[0] = 1e-3
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    pruner = ST3(model, optimizer, sparsity=0.5, steps=4)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 1, 3, 3)).square().sum().backward()
        latent = pruner.state_dict()["latents"]["0.weight"].clone()
        slope = model[0].weight.grad.clone()
        optimizer.step()
    assert not model[0].weight[0].count_nonzero()
    assert slope[0].abs().amax() > 2 * slope[1:].abs().amax()  # a norm divides by how little it varies
    torch.testing.assert_close(pruner.state_dict()["latents"]["0.weight"], latent - 1e-4 * slope)


def test_a_vector_is_one_row(bare, push):
    model = bare(w=[4.0, 3.0, 2.0, 1.0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ST3(model, optimizer, sparsity=0.5, steps=1, prunable=["w"])
    push(model, optimizer)
    scale = 1.01 / (0.01 + 7 / 10)
    torch.testing.assert_close(model.w.detach(), torch.tensor([2 * scale, scale, 0, 0]))


def test_it_prunes_single_weights():
    model = nn.Conv2d(1, 4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="ST-3 prunes single weights"):
        ST3(model, optimizer, sparsity=0.5, steps=10, structure=Channels(torch.zeros(1, 1, 5, 5)))
