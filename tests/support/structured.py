"""Small networks for structured pruning, and what is really left of them when channels go."""

import copy
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.helpers import conv, size
from torch import Tensor, nn

import fadeout
from fadeout import Channels, models
from fadeout.models.resnet import BasicBlock, ResNet
from fadeout.torch_bridge.parameters import has_two_dimensions

IMAGE = torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(0))
DIGIT = torch.zeros(1, 1, 28, 28)


def bind(model: nn.Module, structure: Channels, prunable: Any = has_two_dimensions) -> Any:
    return structure.bind(model, [torch.optim.SGD(model.parameters(), lr=0.1)], prunable)


@torch.no_grad()
def scatter(model: nn.Module) -> nn.Module:
    """Scales and shifts of every size, so that ranks are clear and shifts speak."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.uniform_(0.1, 1)
            module.bias.normal_()
    return model


def chain(**arguments: Any) -> nn.Sequential:
    return nn.Sequential(
        *(conv(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU()),
        *(conv(6, 6, 3, **arguments), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)),
    )


def without_norms() -> nn.Sequential:
    depthwise = conv(6, 6, 3, padding=1, groups=6)
    return nn.Sequential(
        *(conv(3, 6, 3, padding=1), nn.ReLU(), depthwise, nn.ReLU(), conv(6, 4, 3, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(144, 8), nn.ReLU(), nn.Linear(8, 2)),
    )


def with_sigmoids() -> nn.Sequential:
    """What a dead channel leaves behind is folded into biases that were not there."""
    return nn.Sequential(
        *(conv(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.Sigmoid(), conv(6, 6, 3, bias=False)),
        *(nn.BatchNorm2d(6), nn.Sigmoid(), nn.Flatten(), nn.Linear(24, 3, bias=False)),
    )


class Residual(nn.Module):
    """A stem, a residual block, a classifier."""

    def __init__(self, width: int = 6):
        super().__init__()
        self.conv1, self.bn1 = conv(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = conv(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.fc = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn3(self.conv3(F.relu(self.bn2(self.conv2(x))))) + x)
        return self.fc(x.mean((2, 3)))


def resnet8(post_norm: bool) -> nn.Module:
    return ResNet(BasicBlock, (2, 1), width=4, post_norm=post_norm)


NETWORKS = {
    "chain": (chain, {}),
    "by norm": (chain, {"by": "norm"}),
    "filters": (chain, {"filters": True}),
    "sigmoids": (with_sigmoids, {}),
    "grouped": (lambda: chain(groups=2), {}),
    "without norms": (without_norms, {"by": "norm"}),
    "residual": (Residual, {}),
    "coupled": (Residual, {"couple": True}),
    "resnet": (lambda: resnet8(post_norm=True), {}),
    "all of resnet": (lambda: resnet8(post_norm=True), {"candidates": "all"}),
    "usual resnet": (lambda: resnet8(post_norm=False), {}),
    "transformer": (lambda: models.vit(image_size=6, patch=3, dim=6, depth=2, heads=2), {"by": "norm"}),
}


LARGER = {
    "resnet20": (lambda: models.resnet20(width=4), {}),
    "usual resnet20": (lambda: models.resnet20(width=4, post_norm=False), {}),
    "mobilenet": (lambda: models.mobilenetv2(width_mult=0.1), {}),
}


# The networks of the library, small.
SIZES = {
    "densenet40": {"growth": 2},
    "lenet5": {},
    "mobilenetv2": {"width_mult": 0.1},
    "smallcnn": {},
    "vit": {"image_size": 8, "dim": 12, "depth": 2},
}
INPUTS = {"lenet5": (1, 28, 28), "smallcnn": (1, 8, 8)}
WITHOUT_NORMS = {"lenet5", "smallcnn", "vit"}
IMAGES = [name for name in models.__all__ if name != "gcn"]  # which takes a graph, and keeps its channels


def library(name: str) -> nn.Module:
    """A network of the library with few maps, and scales that tell channels apart."""
    torch.manual_seed(0)
    model = scatter(getattr(models, name)(**SIZES.get(name, {"width": 4})))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # outputs are compared in training mode too
    return model.double()


def magnitudes(bound: Any) -> dict[str, Tensor]:
    return {name: parameter.detach().abs() for name, parameter in bound.parameters.items()}


def by_channel(layer: Any, name: str, values: Tensor) -> Tensor:
    """What belongs to each channel, of a parameter or of its mask."""
    rows = values.unsqueeze(-1).flatten(1)
    return rows[torch.from_numpy(layer.rows[name])].flatten(1) if name in layer.rows else rows


def score(bound: Any, layer: Any) -> Tensor:
    rows = [by_channel(layer, name, bound.parameters[name].detach()) for name in layer.scored]
    return torch.cat(rows, 1).norm(dim=1)


@torch.no_grad()
def left(
    model: nn.Module, dead: dict[str, Tensor], bound: Any, example: Tensor, count: Any, **options: Any
) -> int:
    """What is really left when these channels of each layer are zero."""
    model = copy.deepcopy(model)
    for layer in bound.layers:
        for name in layer.fading:
            parameter = model.get_parameter(name)
            parameter[layer.by_slice(name, dead[layer.name], len(parameter))] = 0
    return count(fadeout.compact(model, example, **options))


def check_target(
    model: nn.Module, structure: Channels, sparsity: float, count: Any = size, bound: Any = None
) -> None:
    """The least number of channels that reaches the target, by what compaction really leaves."""
    bound, example = bound or bind(model, structure), structure.example_input
    bound.check(sparsity)
    marks = bound.select(magnitudes(bound), sparsity)
    dead = {}
    for layer in bound.layers:
        for name in layer.fading:
            rows = by_channel(layer, name, marks[name])
            assert torch.equal(rows.any(1), rows.all(1))  # channels go whole
            assert torch.equal(dead.setdefault(layer.name, rows.all(1)), rows.all(1))
    taken = [
        (score(bound, layer)[i], layer.name, i) for layer in bound.layers for i in dead[layer.name].nonzero()
    ]
    _, name, last = max(taken)
    options = {"couple": structure.couple}
    wanted = sparsity * count(model)
    assert count(model) - left(model, dead, bound, example, count, **options) >= wanted
    dead[name][last] = False
    assert count(model) - left(model, dead, bound, example, count, **options) < wanted


def most(bound: Any) -> float:
    """The largest target that can be reached, by the error for one that is larger."""
    with pytest.raises(ValueError, match=r"sparsity=0\.9999 .* cannot be reached") as caught:
        bound.check(0.9999)
    return float(re.search(r"at most ([\d.]+) can go", str(caught.value))[1])


@torch.no_grad()
def without(model: nn.Module, bound: Any, sparsity: float) -> nn.Module:
    """A copy in which the channels that a removal would take are zero."""
    model = copy.deepcopy(model)
    for name, gone in bound.select(magnitudes(bound), sparsity).items():
        model.get_parameter(name).masked_fill_(gone, 0)
    return model
