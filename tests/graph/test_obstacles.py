"""Lines for which channels stay. What Channels() says of them is in tests/structures."""

import pytest
import torch
from support.helpers import Net, conv

from fadeout.graph.analysis import analyse
from fadeout.graph.obstacles import find_obstacles, in_words, place, without
from fadeout.graph.trace import trace

IMAGES = torch.randn(2, 3, 6, 6)


def kept_aside(m, h):
    m.maps = h
    return h


def halved(m, h):
    return h / h.shape[1]  # a line to be named


def obstacles_of(change):
    model = Net(lambda m, x: m.b(change(m, m.a(x))), a=conv(3, 4), b=conv(4, 2))
    network = trace(model, IMAGES)
    return network, find_obstacles(analyse(network))


def test_what_is_kept_aside_may_be_read():
    _, obstacles = obstacles_of(kept_aside)
    assert in_words(obstacles) == (
        "the forward keeps them in 'maps', where they may be read: leave that out, if they shall go"
    )


def test_a_number_of_channels_is_computed_with():
    _, obstacles = obstacles_of(halved)
    assert in_words(obstacles).startswith("the forward computes with how many there are (")
    assert "test_obstacles.py" in in_words(obstacles)
    assert "return h / h.shape[1]  # a line to be named): write the number itself" in in_words(obstacles)


def test_the_same_reason_is_said_once():
    _, obstacles = obstacles_of(lambda m, h: halved(m, halved(m, h)))
    assert len(obstacles) == 2
    assert in_words(obstacles).count("how many there are") == 1


@pytest.mark.parametrize("change", [kept_aside, halved])
def test_without_them_channels_go(change):
    """The first layer is zero but for its last channel."""
    network, obstacles = obstacles_of(change)
    layer = network.model.a
    with torch.no_grad():
        layer.weight[:3] = layer.bias[:3] = 0
    (a,) = (node for node in network.graph.nodes if node.name == "a")
    assert analyse(network).flows[a].needed.tolist() == [True] * 4
    assert analyse(without(network, obstacles)).flows[a].needed.tolist() == [False] * 3 + [True]


def test_a_call_whose_line_is_not_known_has_no_place():
    network, _ = obstacles_of(halved)
    node = next(iter(network.graph.nodes))
    node.meta["line"] = None
    assert place(node) == ""
    node.meta["line"] = ("nowhere.py", 7)
    assert place(node) == " in nowhere.py:7"
