"""Which layers can lose channels."""

import pytest
import torch
import torch.nn.functional as F
from support.helpers import Net, conv, size
from support.structured import bind
from torch import nn

import fadeout
from fadeout import Channels
from fadeout.methods.magnitude import one_shot

IMAGES = torch.randn(2, 3, 6, 6)


def found(model, example=IMAGES):
    return {layer.name: layer.width for layer in bind(model, Channels(example, by="norm")).layers}


def test_a_layer_that_is_read_more_than_once():
    model = Net(lambda m, x: m.b(cubed(m.a(x))), a=nn.Linear(3, 4), b=nn.Linear(4, 2))
    assert found(model, torch.randn(2, 3)) == {"a": 4}


def test_a_filter_that_two_norms_share_is_neithers():
    """It would fade with a channel of one of them, and take one of the other along."""
    model = Net(
        lambda m, x: m.b(torch.cat([m.n(m.a(x)), m.o(m.a(-x))], 1)),
        **{"a": conv(3, 4), "n": nn.BatchNorm2d(4), "o": nn.BatchNorm2d(4), "b": conv(8, 2)},
    )
    layers = bind(model, Channels(IMAGES, filters=True)).layers
    assert {layer.name: layer.fading for layer in layers} == {
        "n": ("n.weight", "n.bias"),
        "o": ("o.weight", "o.bias"),
    }


def cubed(x):
    return x * 0.5 + x.pow(3)


@pytest.mark.parametrize(("gate", "goes"), [(torch.sigmoid, False), (torch.tanh, True)])
def test_a_gate_that_would_stick_is_none(gate, goes):
    """Without its row, what a channel is multiplied with would be a half for ever: it is not dead."""
    model = Net(
        lambda m, x: m.c(m.n(m.a(x)) * gate(m.b(x.mean((2, 3), keepdim=True)))),
        **{"a": conv(3, 4), "n": nn.BatchNorm2d(4), "b": conv(3, 4), "c": conv(4, 2)},
    )
    assert found(model) == ({"n": 4, "b": 4} if goes else {"n": 4})


def test_a_gate_that_is_put_beside_its_value_is_none():
    """A gated linear unit of two layers: a gate without its row is a half, a value without it is zero."""
    model = Net(
        lambda m, x: m.c(F.glu(torch.cat([m.a(x), m.b(x), m.d(x)], 1), dim=1)),
        **{"a": conv(3, 4), "b": conv(3, 2), "d": conv(3, 6), "c": conv(6, 2)},
    )
    assert found(model) == {"a": 4, "b": 2}


def test_what_a_norm_follows_is_the_norms():
    model = Net(
        lambda m, x: m.b(m.n(m.a(x).relu().flatten(0, 1))),
        **{"a": nn.Linear(3, 4), "n": nn.BatchNorm1d(4), "b": nn.Linear(4, 2)},
    )
    assert found(model, torch.randn(2, 5, 3)) == {"n": 4}


def test_what_a_norm_takes_side_by_side_is_the_norms():
    """As in MixNet: alone, a filter would fade in vain, for the norm would go on."""
    model = Net(
        lambda m, x: m.c(m.n(torch.cat([m.a(x), m.b(x)], 1))),
        **{"a": conv(3, 4), "b": conv(3, 2), "n": nn.BatchNorm2d(6), "c": conv(6, 2)},
    )
    assert found(model) == {"n": 6}


def test_a_norm_without_scales_lets_filters_go():
    model = nn.Sequential(conv(3, 4), nn.InstanceNorm2d(4), nn.PReLU(), conv(4, 2))
    assert found(model) == {"0": 4}
    one_shot(model, 0.4, structure=Channels(IMAGES, by="norm"))
    small = fadeout.compact(model.eval(), IMAGES)
    assert size(small) <= 0.6 * size(model)
    torch.testing.assert_close(small(IMAGES), model(IMAGES))


@pytest.mark.parametrize("multiple_of", [1, 2])
def test_channels_of_a_piece_that_stays_do_not_fade(multiple_of):
    """Half of the channels are the network's output: they stay, and are the lowest."""

    def forward(m, x):
        first, second = m.n(m.a(x)).relu().chunk(2, 1)
        return m.b(first), second

    model = Net(forward, a=conv(3, 8), n=nn.BatchNorm2d(8), b=conv(4, 2))
    with torch.no_grad():
        model.n.weight[4:] = 0.1
    structure = Channels(IMAGES, by="scale", multiple_of=multiple_of)
    bound = bind(model, structure)
    assert bound.layers[0].stays == (4, 5, 6, 7)
    assert "4 channels of 1 layers" in bound.in_words()
    one_shot(model, 0.2, structure=structure)
    assert model.n.weight[4:].all()
    small = fadeout.compact(model, IMAGES)
    assert size(small) <= 0.8 * size(model)


def test_what_goes_is_counted_where_nothing_of_a_product_is_left():
    """Each side keeps its first channel, and neither is needed: then nor is what makes them."""
    model = Net(
        lambda m, x: m.c(m.a(m.d(x)).tanh() * m.b(m.d(x).relu()).tanh()),
        **{"d": nn.Linear(3, 5), "a": nn.Linear(5, 4), "b": nn.Linear(5, 4), "c": nn.Linear(4, 2)},
    )
    with torch.no_grad():
        for layer, stays in ((model.a, 0), (model.b, 1)):
            kept = torch.arange(4) == stays
            layer.weight[~kept] = layer.bias[~kept] = 0
    x = torch.randn(2, 3)
    bound = bind(model, Channels(x, by="norm"))
    alive = {layer.name: torch.ones(layer.width, dtype=torch.bool).numpy() for layer in bound.layers}
    alive |= {"a": (torch.arange(4) == 0).numpy(), "b": (torch.arange(4) == 1).numpy()}
    bound.cost.dependencies = None
    assert bound.cost.left(alive) == size(fadeout.compact(model, x))


def keep(m, h):
    m.maps = h
    return h


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (keep, "the forward keeps them in 'maps', where they may be read"),
        (
            lambda m, h: h / h.shape[1],
            r"the forward computes with how many there are \(div in .*h / h.shape\[1\]",
        ),
    ],
)
def test_a_line_of_the_forward_for_which_a_layer_stays_whole(change, reason):
    """It is said where others can go, and where none can."""
    layers = {"a": conv(3, 4), "b": conv(4, 4), "c": conv(4, 2)}
    model = Net(lambda m, x: m.c(m.b(change(m, m.a(x).relu())).relu()), **layers)
    with pytest.warns(
        UserWarning, match=rf"Channels\(\) leaves all channels of 'a' in place, because {reason}"
    ):
        assert found(model) == {"b": 4}
    model = Net(lambda m, x: m.c(change(m, m.a(x).relu())), a=conv(3, 4), c=conv(4, 2))
    with pytest.raises(
        ValueError, match=rf"no channel of this network can go.*of 'a' in place, because {reason}"
    ):
        found(model)


def test_lines_for_which_nothing_stays_are_not_named():
    """What the network returns it may keep, and count, too."""
    model = Net(lambda m, x: keep(m, m.b(m.a(x).relu())) / 2, a=conv(3, 4), b=conv(4, 2))
    assert found(model) == {"a": 4}


def test_a_target_out_of_reach_names_what_stays():
    norm = nn.utils.parametrizations.weight_norm
    layers = {"a": norm(conv(3, 9, 3)), "b": conv(9, 4), "c": conv(4, 2)}
    bound = bind(Net(lambda m, x: m.c(m.b(m.a(x).relu()).relu()), **layers), Channels(IMAGES, by="norm"))
    with pytest.raises(
        ValueError, match=r"0.9 of the parameters cannot be reached.*computes the weight of 'a'"
    ):
        bound.check(0.9)
