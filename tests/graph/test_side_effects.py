"""What a forward keeps on its modules keeps its channels; fadeout's own runs leave nothing there."""

import copy
import warnings

import pytest
import torch
from support.helpers import Net, conv, gathers, kill, same_outputs, shapes
from support.small_networks import IMAGES
from torch import nn

import fadeout
from fadeout.graph.side_effects import copied, keep, keeps, kept_on, left_alone
from fadeout.graph.trace import trace


def keeping(put) -> Net:
    """Two layers, of which the first loses channels; its output is kept, and read further."""

    def forward(m, x):
        h = m.a(x).relu()
        put(m, h)
        return m.b(h)

    model = Net(forward, a=conv(3, 6), b=conv(6, 2)).double()
    kill(model.a, channels=[1, 4])
    return model


def put_in_a_list(m, h):
    m.maps = [h]


def put_in_a_dictionary(m, h):
    m.maps = {"a": (h,)}


def put_on_a_layer(m, h):
    m.b.maps = h


def put_as_a_buffer(m, h):
    m.register_buffer("maps", h, persistent=False)


PUTS = [put_in_a_list, put_in_a_dictionary, put_on_a_layer, put_as_a_buffer]


@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("for_inference", [False, True])
def test_what_is_kept_keeps_its_channels(put, for_inference):
    model = keeping(put)
    with pytest.warns(UserWarning, match=r"2 of 'a' stay, because the forward keeps them in '(b\.)?maps'"):
        small = fadeout.compact(model, IMAGES, for_inference=for_inference)
    same_outputs(model, small, IMAGES)
    kept = [[t for where, t in kept_on(one) if where.endswith("maps")] for one in (model, small)]
    assert torch.allclose(kept[0][0], kept[1][0])


def test_what_depends_on_parameters_alone_is_a_cache():
    """LeViT looks its biases of positions up once, in evaluation mode: its forward can be rewritten."""

    def forward(m, x):
        h = m.a(x).relu()
        m.cache = {"cpu": m.b.weight[:1].sum()}
        return m.b(h) + m.cache["cpu"]

    model = Net(forward, a=conv(3, 6), b=conv(6, 2)).double()
    kill(model.a, channels=[1, 4])
    network = trace(model, IMAGES)
    assert not keeps(network.graph)
    assert network.rewritable


def test_what_is_not_kept_goes():
    small = fadeout.compact(keeping(lambda m, h: None), IMAGES)
    assert shapes(small)["a.weight"] == (4, 3, 1, 1)


def test_the_forward_that_keeps_stays():
    """A graph would not keep anything: so both sides of the addition have the same channels."""

    def forward(m, x):
        y = m.a(x).relu() + m.b(x).relu()
        m.maps = y
        return m.c(y)

    model = Net(forward, a=conv(3, 6), b=conv(3, 6), c=conv(6, 2)).double()
    kill(model.a, channels=[1, 4])
    for for_inference in (False, True):
        with pytest.warns(UserWarning, match="2 of 'a' stay, because the forward does more than its graph"):
            small = fadeout.compact(model, IMAGES, for_inference=for_inference)
        assert not gathers(small)
        assert not isinstance(small, torch.fx.GraphModule)
        same_outputs(model, small, IMAGES)
        assert torch.allclose(small.maps, model.maps)


def test_weights_of_attention_that_are_kept():
    """They are the mean over all heads, so none goes."""

    def forward(m, x):
        y, m.seen = m.heads(x, x, x)
        return m.b(y)

    model = Net(forward, heads=nn.MultiheadAttention(8, 4, batch_first=True), b=nn.Linear(8, 2)).double()
    with torch.no_grad():
        model.heads.in_proj_weight[16:20] = 0
        model.heads.in_proj_bias[16:20] = 0
    x = torch.randn(2, 5, 8).double()
    small = fadeout.compact(model, x)
    same_outputs(model, small, x)
    assert torch.allclose(small.seen, model.seen)


def test_inputs_parameters_and_tables_are_not_kept():
    """What does not depend on weights or images may be made again by a graph."""

    def forward(m, x):
        m.given, m.table, m.own = x, torch.arange(x.shape[1]), m.a.weight
        return m.b(m.a(x))

    network = trace(Net(forward, a=conv(3, 6), b=conv(6, 2)), IMAGES.float())
    assert not any(node.target is keep for node in network.graph.nodes)
    assert network.rewritable


def test_the_model_is_left_alone():
    """Its state may be of another batch size than the example."""

    def forward(m, x):
        m.seen.append(len(x))
        m.state = m.a(x).relu() + (m.state if hasattr(m, "state") else 0)
        return m.b(m.state)

    model = Net(forward, a=conv(3, 6), b=conv(6, 2)).double()
    model.seen = []
    fadeout.compact(model, IMAGES)
    fadeout.sparse(model, IMAGES)
    with pytest.raises(ValueError, match="keeps them in 'state'"):
        fadeout.Channels(IMAGES, by="norm").bind(model, None, lambda name, parameter: True)
    assert model.seen == []
    assert not hasattr(model, "state")


def test_layers_that_begin_in_their_first_forward_may():
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 2))
    with left_alone(model):
        model(torch.zeros(1, 3))
    assert model[0].in_features == 3
    assert model(torch.zeros(1, 3)).shape == (1, 2)


@pytest.mark.parametrize("shrink", [fadeout.compact, fadeout.sparse])
def test_after_a_step_of_training(shrink):
    """Then gradients flow through what was kept, which PyTorch does not copy."""
    model = keeping(put_in_a_list)
    model(IMAGES).sum().backward()
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(model)
    before = model.maps[0]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "compact.. keeps")
        shrink(model, IMAGES)
    assert model.maps[0] is before
    assert torch.equal(copied(model).maps[0], before)
