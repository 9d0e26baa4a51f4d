"""GReg-2: a growing penalty on all filters, a choice by what gives way, and a push for what is to go."""

import pytest
import torch
from torch import nn

from fadeout import Channels
from fadeout.methods import GrowingRegularization
from fadeout.models import resnet20

IMAGE = torch.zeros(1, 1, 4, 4)


def network(width=4):
    model = nn.Sequential(
        nn.Conv2d(1, 1, 1, bias=False),  # the first layer stays whole
        *(nn.Conv2d(1, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
        *(nn.Conv2d(width, 2 * width, 1, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU()),
        nn.Conv2d(2 * width, 1, 1, bias=False),
    ).double()
    model[2].bias.data.fill_(1.0)
    model[5].bias.data.fill_(1.0)
    return model


def build(model, steps=100, lr=0.1, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, **options)
    structure = Channels(IMAGE.double())
    pruner = GrowingRegularization(model, optimizer, sparsity=0.5, steps=steps, structure=structure)
    return optimizer, pruner


def push(model, optimizer, steps=1, slope=torch.zeros_like):
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = slope(parameter.detach())
        optimizer.step()


@pytest.mark.parametrize("maximize", [False, True])
def test_the_penalty_by_hand(maximize):
    model = network()
    optimizer, pruner = build(model, maximize=maximize)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    push(model, optimizer, 51)  # none up to 0.5
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
    assert pruner.penalty_now == pytest.approx(0.01 / 6)
    assert pruner.factor_now == pytest.approx(1 - 0.1 * 0.01 / 6)
    push(model, optimizer)
    for name, parameter in model.named_parameters():
        filters = name in ("1.weight", "4.weight")  # not the norms, nor the outer layers, which stay
        torch.testing.assert_close(parameter.detach(), before[name] * (1 - 0.1 * 0.01 / 6 * filters))
    push(model, optimizer, 4)
    picked = {name: p.detach().clone() for name, p in model.named_parameters()}
    masks = pruner.masks()
    push(model, optimizer)  # from now on only what is to go
    assert pruner.sparsity_now == 0.5
    for name, mask in masks.items():
        pushed = (1 - 0.1 * 0.01) * picked[name] if name in ("1.weight", "4.weight") else picked[name]
        torch.testing.assert_close(
            model.get_parameter(name).detach(), torch.where(mask, picked[name], pushed)
        )
    push(model, optimizer, 7)
    assert pruner.penalty_now == 1.0
    push(model, optimizer, 5)
    assert all(int(model.get_parameter(n)[~masks[n]].count_nonzero()) for n in ("1.weight", "2.weight"))
    push(model, optimizer)  # 0.7 of the training is over
    for name, mask in masks.items():
        assert torch.equal(model.get_parameter(name) != 0, mask)
    push(model, optimizer, 1, slope=torch.ones_like)
    for name, mask in masks.items():
        assert not int(model.get_parameter(name)[~mask].count_nonzero())


def test_every_layer_loses_the_same_share_by_l1_norm():
    model = network()
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([4.0, -1, 3, -2]).view(4, 1, 1, 1))
        model[4].weight.copy_(
            1e-3 * torch.tensor([8.0, 1, 7, 2, 6, 3, 5, 4]).view(8, 1, 1, 1).expand(8, 4, 1, 1)
        )
    _, pruner = build(model)
    masks = pruner.masks()
    # half of the small layer, as of the large
    assert masks["2.weight"].tolist() == [True, False, True, False]
    assert masks["5.weight"].tolist() == [True, False, True, False, True, False, True, True]


def test_the_first_layer_and_sums_stay_whole():
    """In the paper only layers inside blocks lose filters; a sum has none that a penalty could push."""
    torch.manual_seed(0)
    model = resnet20(width=4)  # a norm follows each addition
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    structure = Channels(torch.zeros(1, 3, 8, 8), by="scale")
    pruner = GrowingRegularization(model, optimizer, sparsity=0.6, steps=100, structure=structure)
    gone = {name: int((~mask).sum()) for name, mask in pruner.masks().items() if mask.dim() == 1}
    inner = [name for name in gone if name.startswith("layer") and ".bn1." in name]
    assert {name for name, count in gone.items() if count} == set(inner)
    push(model, optimizer, 51)
    before = model.conv1.weight.detach().clone()
    push(model, optimizer, 3)  # the pick
    assert torch.equal(model.conv1.weight, before)


def test_where_no_other_is_left_they_lose_channels_too():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 1, bias=False), nn.BatchNorm2d(8), nn.Conv2d(8, 1, 1)).double()
    optimizer, pruner = build(model)
    push(model, optimizer, 57)
    gone = ~pruner.masks()["1.weight"]
    assert 0 < int(gone.sum()) < 8
    before = model[0].weight.detach().clone()
    push(model, optimizer)
    smaller = model[0].weight.abs() < before.abs()
    assert torch.equal(smaller.view(-1), gone)


def test_what_the_loss_holds_least_gives_way():
    """Equal filters, but the loss curves a hundred times less along some of them: those go."""
    model = network(width=8)
    stiff = {8: torch.arange(8) % 2 == 0, 16: torch.arange(16) % 2 == 0}
    for layer in (model[1], model[4]):
        layer.weight.data.fill_(0.5)
    optimizer, pruner = build(model, steps=1000, momentum=0.9)

    def slope(weight):
        if weight.dim() < 2 or len(weight) == 1:
            return torch.zeros_like(weight)
        curvature = torch.where(stiff[len(weight)], 1.0, 0.01).view(-1, 1, 1, 1)
        return curvature * (weight - 0.5)

    push(model, optimizer, 560, slope)
    gone = ~pruner.masks()["2.weight"]
    assert int(gone.sum()) > 1
    assert not int((gone & stiff[8]).sum())
    assert model[1].weight[1].item() < 0.42 < 0.49 < model[1].weight[0].item()


def test_a_closure_gets_the_penalty_with_its_loss():
    model = network()
    optimizer, pruner = build(model)
    push(model, optimizer, 53)
    squares = sum(model[i].weight.detach().square().sum() for i in (1, 4))

    def closure():
        optimizer.zero_grad()
        loss = model(IMAGE.double().repeat(2, 1, 1, 1)).sum() * 0 + 7
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == pytest.approx(7 + 0.01 / 2 / 2 * squares.item())
    assert pruner.penalty_now == pytest.approx(0.01 * 4 / 6)


def test_no_denormal_numbers_are_left_on_the_way():
    model = network()
    optimizer, pruner = build(model, lr=0.9)
    push(model, optimizer, 57)
    gone = {name: ~mask for name, mask in pruner.masks().items()}
    model[4].weight.data[gone["4.weight"]] = 1e-310
    push(model, optimizer)
    assert not int(model[4].weight[gone["4.weight"]].count_nonzero())
