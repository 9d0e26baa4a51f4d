"""HESSO: saliency, periods, and a straight line to zero."""

import itertools

import pytest
import torch
from torch import nn

from fadeout import Channels
from fadeout.methods import HESSO

IMAGE = torch.zeros(1, 1, 4, 4)


def network(width=8):
    return nn.Sequential(
        *(nn.Conv2d(1, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
        *(nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
        nn.Conv2d(width, 1, 1, bias=False),
    ).double()


def build(model, steps, sparsity=0.5, lr=0.1, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, **options)
    return optimizer, HESSO(
        model, optimizer, sparsity=sparsity, steps=steps, structure=Channels(IMAGE.double())
    )


def push(model, optimizer, steps=1, slope=torch.zeros_like):
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = slope(parameter.detach())
        optimizer.step()


def test_redundant_channels_go_to_zero_along_a_straight_line():
    model = network()
    optimizer, pruner = build(model, steps=500)  # ten periods of five steps, from step 50 on
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    push(model, optimizer, 50)
    assert (pruner.factor_now, pruner.sparsity_now) == (0.8, 0.05)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])  # the warm-up is over, and nothing has been done
    gone = []
    for number in range(10):
        for left in (4, 3, 2, 1, 0):
            push(model, optimizer)
            fading = {name: pruner._fading[name] for name in pruner.parameters}
            for name, mask in fading.items():
                torch.testing.assert_close(
                    model.get_parameter(name)[mask].detach(), before[name][mask] * left / 5
                )
        assert any(bool(mask.any()) for mask in fading.values()) or number > 0
        gone.append(sum(int((model.get_parameter(n) == 0).sum()) for n in ("0.weight", "3.weight")))
    assert gone == sorted(gone)
    assert gone[0] < gone[-1] / 2  # period by period, not at once
    assert (pruner.factor_now, pruner.sparsity_now, pruner.fade) == (0.0, 0.5, 0.0)


def test_what_is_redundant_trains_on_while_it_fades_and_what_has_gone_does_not():
    model = network()
    model[0].weight.data[3] = model[1].weight.data[3] = 0.01
    optimizer, pruner = build(model, steps=500)
    push(model, optimizer, 51)
    fading = pruner._fading["0.weight"]
    assert bool(fading.any())
    value = model[0].weight.detach().clone()
    push(model, optimizer, slope=torch.ones_like)
    torch.testing.assert_close(model[0].weight[fading], (value[fading] - 0.1) * 3 / 4)
    torch.testing.assert_close(model[0].weight[~fading], value[~fading] - 0.1)
    push(model, optimizer, 4)
    push(model, optimizer, 3, slope=torch.ones_like)
    assert not int(model[0].weight[fading].count_nonzero())


def test_the_saliency_by_hand():
    """Two layers of two channels, the second without weight in the first place."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 2, 1, bias=False), nn.BatchNorm2d(2), nn.ReLU()), nn.Conv2d(2, 1, 1, bias=False)
    ).double()
    optimizer, pruner = build(model, steps=10, sparsity=0.3)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([2.0, 2.0]).view(2, 1, 1, 1))
        model[1].weight.copy_(torch.tensor([1.0, 1.0]))
        model[1].bias.copy_(torch.tensor([2.0, 6.0]))
    gradients = {
        "0.weight": [1.0, 0.0],
        "1.weight": [0.0, 0.0],
        "1.bias": [0.0, -1.0],
        "3.weight": [0.0, 0.0],
    }
    push(model, optimizer)
    for name, value in gradients.items():
        parameter = model.get_parameter(name)
        parameter.grad = torch.tensor(value).double().view_as(parameter)
    seen = []
    score = pruner.score_channels
    pruner.score_channels = lambda: seen.append(score()) or seen[-1]
    optimizer.step()
    x, product = torch.tensor([3.0, 41**0.5]), torch.tensor([2.0, -6.0])
    parts = [x, x / 3, 1 + product / x, product.abs(), product.square() / 2]
    wanted = sum(part / part.norm() for part in parts) / 5
    torch.testing.assert_close(seen[0][0], wanted.double())


def test_the_least_salient_of_all_layers_go_first():
    model = network()
    with torch.no_grad():
        for layer in (model[0], model[3]):
            layer.weight.fill_(1.0)
        model[3].weight[2:7] = 0.01
        model[4].weight[2:7] = 0.01
    optimizer, pruner = build(model, steps=10, sparsity=0.3)
    push(model, optimizer, 10, slope=torch.ones_like)
    masks = pruner.masks()
    assert masks["1.weight"].all()
    assert set((~masks["4.weight"]).nonzero().flatten().tolist()) <= {2, 3, 4, 5, 6}


@pytest.mark.parametrize("steps", [1, 2, 5, 10, 55, 99, 100, 1234])
def test_periods_fill_the_window_without_gaps(steps):
    _, pruner = build(network(), steps=steps)
    found = [pruner._period(step) for step in range(steps + 2)]
    periods = [period for period, _ in found]
    assert periods == sorted(periods)
    inside = [(period, left) for period, left in found if period and left > 0]
    assert inside[-1] == (10, 1)
    for (period, left), (after, then) in itertools.pairwise(inside):
        assert (after, then) == (period, left - 1) or (left == 1 and after > period)
    assert len(inside) == max(round(0.2 * steps) - round(0.1 * steps), 1)
