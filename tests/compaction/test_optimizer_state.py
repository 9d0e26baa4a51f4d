"""Training goes on with the smaller network, its optimizer's state cut as the parameters were."""

import re

import pytest
import torch
import torch.nn.functional as F
from support.helpers import Net, conv, kill, same_outputs, shapes, size
from support.small_networks import IMAGES, Chain, Residual, chain
from torch import nn

import fadeout
from fadeout import Masks, models


def _resnet(post_norm: bool) -> nn.Module:
    return models.resnet20(num_classes=2, width=4, post_norm=post_norm)


def _depthwise() -> nn.Module:
    depthwise = conv(4, 4, 3, padding=1, groups=4, bias=False)
    return nn.Sequential(
        *(conv(3, 4, bias=False), nn.BatchNorm2d(4), nn.ReLU6(), depthwise, nn.BatchNorm2d(4), nn.Flatten()),
        nn.Linear(144, 2),
    )


def _twice() -> nn.Module:
    layers = {"a": conv(3, 4), "b": conv(4, 4, bias=False), "n": nn.BatchNorm2d(4), "c": conv(4, 2)}
    return Net(lambda m, x: m.c(m.n(m.b(F.relu(m.b(m.a(x)))))), **layers)


# A network, the layers that lose channels, and whether all of them lose the same: a zero that must stay, say
# in half a head, would come back to life.
TRAINED = {
    "chain": (Chain, "1", False),
    "residual": (Residual, "norm|b", False),
    "depthwise": (_depthwise, "1|4", True),
    "used twice": (_twice, "a|b|n", True),
    "resnet": (lambda: _resnet(True), r".*(bn\d|post|downsample\.1)", False),
    "usual resnet": (lambda: _resnet(False), r".*(bn\d|downsample\.1)", False),
    "vit": (lambda: models.vit(2, image_size=6, patch=3, dim=4, depth=1, heads=2), r".*(\.v|fc1)", True),
}


def _masks(model: nn.Module, layers: str, alike: bool) -> Masks:
    """Take the last two channels, and perhaps some of the others."""
    masks = {}
    for name, module in model.named_modules():
        if re.fullmatch(layers, name):
            stays = torch.rand(len(module.weight)) > 0.4
            stays[: -2 if alike else 1] = True
            stays[-2:] = False
            for leaf, parameter in module.named_parameters():
                rows = stays.view([-1] + [1] * (parameter.dim() - 1))
                masks[f"{name}.{leaf}"] = rows.expand_as(parameter).clone()
    return Masks(masks)


OPTIMIZERS = {
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.02, momentum=0.9),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.002),
}


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    images = torch.randn(4, 3, 6, 6, generator=generator).double()
    optimizer.zero_grad()
    model(images).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("network", TRAINED)
def test_training_goes_on_as_if_nothing_had_happened(network, optimizer):
    build, layers, alike = TRAINED[network]
    model = build().double()
    first, *others = model.parameters()
    groups = [{"params": others, "weight_decay": 0.1}, {"params": [first], "lr": 0.01, "weight_decay": 0.0}]
    dense = OPTIMIZERS[optimizer](groups)
    for number in range(3):
        _step(model, dense, number)
    masks = _masks(model, layers, alike)
    masks.apply(model)
    small, carried = fadeout.compact(model, IMAGES, optimizer=dense)
    assert size(small) < size(model)
    assert type(carried) is type(dense)
    masks.hold(model, dense)
    for number in range(3, 13):
        _step(model, dense, number)
        _step(small, carried, number)
    same_outputs(model, small, IMAGES)
    same_outputs(model, small, IMAGES, training=True)
    assert shapes(fadeout.compact(model, IMAGES)) == shapes(small)


def test_groups_and_state_are_carried_over():
    model = chain()
    optimizer = torch.optim.Adam(
        [{"params": [model[0].weight], "lr": 0.3, "name": "filters"}, {"params": model[3].parameters()}],
        lr=0.1,
        betas=(0.8, 0.9),
        amsgrad=True,
    )
    _step(model, optimizer, 0)
    small, carried = fadeout.compact(model, IMAGES, optimizer=optimizer)
    assert [group["lr"] for group in carried.param_groups] == [0.3, 0.1]
    assert carried.param_groups[0]["name"] == "filters"
    assert carried.param_groups[1]["betas"] == (0.8, 0.9)
    held = [[id(p) for p in group["params"]] for group in carried.param_groups]
    assert held == [[id(small[0].weight)], [id(small[3].weight), id(small[3].bias)]]
    mine, theirs = optimizer.state[model[3].weight], carried.state[small[3].weight]
    assert torch.equal(theirs["exp_avg"], mine["exp_avg"][:, [0, 3]])
    assert torch.equal(theirs["max_exp_avg_sq"], mine["max_exp_avg_sq"][:, [0, 3]])
    assert theirs["step"] == 1
    theirs["step"] += 1
    assert mine["step"] == 1  # the original optimizer is untouched
    assert optimizer.param_groups[0]["params"][0] is model[0].weight


def test_a_bias_that_came_into_being_is_trained_too():
    model = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2, bias=False))
    kill(model[0], channels=[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    small, carried = fadeout.compact(model, torch.zeros(1, 3), optimizer=optimizer)
    assert any(p is small[2].bias for group in carried.param_groups for p in group["params"])


def test_names_of_parameters_are_those_of_now():
    model = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2, bias=False))
    kill(model[0], channels=[1])
    names, parameters = zip(*model.named_parameters(), strict=True)  # torch 2.6 and newer keep them
    optimizer = torch.optim.SGD([{"params": parameters, "param_names": list(names)}], lr=0.1)
    small, carried = fadeout.compact(model, torch.zeros(1, 3), optimizer=optimizer)
    (group,) = carried.param_groups
    assert group["param_names"] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    new = dict(small.named_parameters())
    assert [id(new[name]) for name in group["param_names"]] == [id(p) for p in group["params"]]
    assert optimizer.param_groups[0]["param_names"] == ["0.weight", "0.bias", "2.weight"]


def test_a_learning_rate_that_is_a_tensor_is_not_shared():
    model = chain()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1))
    _, carried = fadeout.compact(model, IMAGES, optimizer=optimizer)
    optimizer.param_groups[0]["lr"].fill_(0.5)
    assert carried.param_groups[0]["lr"] == torch.tensor(0.1)


def test_optimizers_that_cannot_be_carried_over():
    model = chain()
    with pytest.raises(ValueError, match="LBFGS"):
        fadeout.compact(model, IMAGES, optimizer=torch.optim.LBFGS(model.parameters()))
    with pytest.raises(ValueError, match="parameters that the model does not have"):
        fadeout.compact(model, IMAGES, optimizer=torch.optim.SGD(chain().parameters(), lr=0.1))
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    kill(model[0], channels=[1])
    optimizer = torch.optim.Adafactor(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    kill(model[0], channels=[1])
    with pytest.raises(ValueError, match=r"shape \(4, 1\) for a parameter of shape \(4, 3\)"):
        fadeout.compact(model, torch.zeros(1, 3), optimizer=optimizer)
