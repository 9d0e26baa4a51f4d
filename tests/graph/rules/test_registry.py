"""A new kind of layer is one rule, registered once: tracing, pruning, cutting and counting know it."""

from typing import Any

import pytest
import torch
from support.helpers import gathers, same_outputs, size
from torch import Tensor, fx, nn

import fadeout
from fadeout.graph.analysis import Analysis, Flow
from fadeout.graph.editor import Editor
from fadeout.graph.rules import registry
from fadeout.graph.rules.base import Linked, Unknown
from fadeout.graph.rules.registry import handles, rule_of_module, versions
from fadeout.graph.trace import trace


class Gain(nn.Module):
    """A factor for each channel; the tracing would see only a multiplication with a raw parameter."""

    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.1, 1, channels))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight[:, None, None]


@pytest.fixture
def gain():
    """The rule for it, for the time of a test."""

    @handles(Gain)
    class GainRule(Linked):
        def values(self, node: fx.Node, flow: Flow, a: Analysis) -> Tensor:
            if a.dead is not None:
                gone = a.dead.get(str(node.target), torch.zeros(flow.width).bool())
            else:
                gone = a.module(node).weight.detach() == 0
            return torch.where(gone, 0.0, torch.nan)

        def cut(self, node: fx.Node, e: Editor) -> None:
            kept = e.kept(node)
            if kept is not None:
                e.slice(node, "weight", (kept,))

        def scales(self, module: Any) -> tuple[str, ...]:
            return ("weight",)

        def per_channel(self, module: Any) -> int:
            return 1

        def operations(self, module: Any, given: Any, output: Any) -> tuple[int, int]:
            return given.numel(), output.numel()

    yield GainRule
    del registry.MODULES[Gain]


def build():
    layers = [nn.Conv2d(3, 8, 3), Gain(8), nn.ReLU(), nn.Conv2d(8, 6, 3), Gain(6), nn.Conv2d(6, 2, 1)]
    return nn.Sequential(*layers)


IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_without_a_rule_nothing_goes():
    model = build()
    with torch.no_grad():
        model[1].weight[:3] = 0
    assert size(fadeout.compact(model, IMAGES)) == size(model)


def test_compact(gain):
    model = build()
    with torch.no_grad():
        model[1].weight[:3] = 0
        model[4].weight[1] = 0
    small = fadeout.compact(model, IMAGES)
    assert [len(small[i].weight) for i in (0, 1, 3, 4)] == [5, 5, 5, 5]
    assert not gathers(small)
    same_outputs(model, small, (IMAGES,))


@pytest.mark.parametrize("of", ["parameters", "operations"])
def test_channels(gain, of):
    model = build()
    structure = fadeout.Channels(IMAGES, of=of)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=1, structure=structure)
    before = fadeout.measure(model, IMAGES).total
    model(IMAGES).square().sum().backward()
    optimizer.step()
    pruner.remove()
    after = fadeout.measure(fadeout.compact(model, IMAGES), IMAGES).total
    if of == "parameters":
        assert 0.4 * before.parameters < after.parameters <= 0.5 * before.parameters
    else:
        assert 0.4 * before.macs < after.macs <= 0.5 * before.macs


def test_measure(gain):
    rows = {row.name: row for row in fadeout.measure(build(), IMAGES).rows}
    assert (rows["1"].parameters, rows["1"].operations_output) == (8, 2 * 8 * 6 * 6)
    assert fadeout.measure(build(), IMAGES).total.operations_output > rows["1"].operations_output


def test_a_derived_class_has_the_cost_but_not_the_rule_of_its_base():
    class Doubled(nn.Linear):
        def forward(self, input):
            return super().forward(input).repeat(1, 2)

    model = nn.Sequential(nn.Linear(3, 4), Doubled(4, 2))
    assert type(rule_of_module(model[1])) is type(rule_of_module(nn.Linear(1, 1)))
    network = trace(model, torch.zeros(1, 3), leaves=[Doubled])
    assert type(network.rules[list(network.graph.nodes)[2]]) is Unknown


def test_versions():
    assert versions("Conv", "Linear") == [nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear]
