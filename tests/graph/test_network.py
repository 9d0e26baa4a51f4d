"""A traced network: shapes, who calls which module, what belongs to whom, whether a graph can stand in."""

import pytest
import torch
from support.helpers import Net, conv
from support.small_networks import IMAGES
from torch import nn

from fadeout.graph.rules.base import Unknown
from fadeout.graph.trace import trace


def named(network):
    return {node.name: node for node in network.graph.nodes}


def test_shapes_and_callers():
    model = Net(lambda m, x: m.b(m.a(m.a(x))), a=conv(3, 3), b=conv(3, 2))
    network = trace(model, IMAGES.float())
    nodes = named(network)
    assert network.shapes[nodes["b"]] == (2, 2, 6, 6)
    assert network.sites(nodes["a"]) == [nodes["a"], nodes["a_1"]]
    assert network.module(nodes["x"]) is None
    assert type(network.rules[nodes["output"]]) is Unknown


def test_shared_and_computed_parameters_are_not_owned():
    model = Net(lambda m, x: m.c(m.b(m.a(x))) * m.a.weight.sum(), a=conv(3, 3), b=conv(3, 3), c=conv(3, 3))
    network = trace(model, IMAGES.float())
    nodes, names = named(network), ("weight", "bias")
    assert [network.owns(nodes[name], names) for name in "abc"] == [False, True, True]
    model.c.weight = model.b.weight
    network = trace(model, IMAGES.float())
    assert not any(network.owns(named(network)[name], names) for name in "abc")


def test_channels_are_named_after_their_module_or_their_call():
    model = Net(lambda m, x: m.r(m.b(m.r(m.a(m.a(x)).abs()))), a=conv(3, 3), b=conv(3, 2), r=nn.ReLU())
    network = trace(model, IMAGES.float())
    keys = {name: network.key(node) for name, node in named(network).items()}
    # a, with its weights, has the same channels in both calls, and r others in each
    wanted = {"a": "a", "a_1": "a", "abs_1": "abs_1", "r": "r (r)", "b": "b", "r_1": "r (r_1)"}
    assert {name: keys[name] for name in wanted} == wanted


def test_what_is_asked_again_is_not_computed_again():
    network, calls = trace(conv(3, 2), IMAGES.float()), []
    for _ in range(2):
        assert network.once("sizes", lambda: calls.append(1) or len(calls)) == 1
    assert network.once("others", lambda: calls.append(1) or len(calls)) == 2


@pytest.mark.parametrize(
    ("forward", "holds", "rewritable"),
    [
        (lambda m, x: m.a(x), True, True),
        (lambda m, x: m.a(x) + torch.ones(x.shape[0]).sum(), True, True),
        (lambda m, x: m.a(x).view(int(x.shape[0]), 2, -1), False, False),  # the size of the example for good
        (lambda m, x: m.a(x) if m.training else m.a(x).neg(), True, False),
    ],
)
def test_a_graph_may_stand_in_for_the_forward(forward, holds, rewritable):
    network = trace(Net(forward, a=conv(3, 2)), IMAGES.float())
    assert (network.holds, network.rewritable) == (holds, rewritable)
