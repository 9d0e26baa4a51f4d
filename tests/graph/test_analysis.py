"""How channels flow through whole networks: several readers, several values, values not followed."""

import pytest
import torch
import torch.nn.functional as F
from support.helpers import ALL, IMAGES, Net, OfTwo, check, conv, kill, shapes
from torch import nn
from torch.nn.utils import prune

# what stays although it is zero is what is tested here: the warning has tests of its own
pytestmark = pytest.mark.filterwarnings("ignore:compact.. keeps")


def test_outputs_keep_all_channels():
    model = Net(lambda m, x: (m.a(x), {"b": m.b(m.a(x))}), a=conv(3, 4), b=conv(4, 2))
    kill(model.a, channels=[0])
    check(model, {})


def test_several_inputs():
    model = OfTwo(
        lambda m, x, y: m.c(torch.cat([m.a(x), m.b(y)], 1)), a=conv(3, 2), b=conv(3, 2), c=conv(4, 2)
    )
    kill(model.b, channels=[0])
    inputs = torch.randn(IMAGES).double(), torch.randn(IMAGES).double()
    check(model, {"b": [1], "c": (ALL, [0, 1, 3])}, inputs)


def test_a_module_that_is_used_twice_keeps_what_either_use_needs():
    model = Net(lambda m, x: m.c(F.relu(m.b(F.relu(m.b(m.a(x)))))), a=conv(3, 4), b=conv(4, 4), c=conv(4, 2))
    kill(model.a, channels=[0, 1])
    kill(model.b, channels=[0, 2])
    left = [1, 2, 3]
    check(model, {"a": left, "b": (left, left), "c": (ALL, left)})


def test_a_norm_that_is_used_twice():
    model = Net(
        lambda m, x: m.c(m.n(m.a(x)) * m.n(m.b(x))),
        a=conv(3, 4),
        b=conv(3, 4),
        n=nn.BatchNorm2d(4),
        c=conv(4, 2),
    )
    kill(model.n, channels=[1])
    check(model, {"a": [0, 2, 3], "b": [0, 2, 3], "n": [0, 2, 3], "c": (ALL, [0, 2, 3])})


def test_tied_parameters_keep_all():
    model = Net(lambda m, x: m.c(m.b(m.a(x))), a=conv(4, 4), b=conv(4, 4), c=conv(4, 2))
    model.b.weight = model.a.weight
    kill(model.a, model.b, channels=[0])
    check(model, {}, (2, 4, 6, 6))


def test_parameters_that_the_forward_reads_for_itself_keep_all():
    model = Net(lambda m, x: m.b(m.a(x)) + m.a.weight.sum(), a=conv(3, 4), b=conv(4, 2))
    kill(model.a, channels=[0])
    check(model, {})


def test_computed_weights_keep_all():
    """As torch.nn.utils.prune and weight norm have them; other layers still shrink."""
    model = nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 4), nn.ReLU(), conv(4, 2))
    kill(model[0], channels=[0])
    kill(model[2], channels=[1])
    prune.identity(model[2], "weight")
    nn.utils.parametrizations.weight_norm(model[4])
    small = check(model, {})
    assert shapes(small) == shapes(model)
    model[0] = nn.Sequential(conv(3, 5), nn.ReLU(), conv(5, 4))
    kill(model[0][0], channels=[0])
    check(model, {"0.0": [1, 2, 3, 4], "0.2": (ALL, [1, 2, 3, 4])})


def test_a_value_that_is_changed_in_place_is_not_followed():
    """The shortcut reads what the rectifier left in its place."""

    def forward(m, x):
        x = m.a(x)
        y = F.hardsigmoid(x, inplace=True)
        return m.b(y) + m.c(x)

    model = Net(forward, a=conv(3, 4), b=conv(4, 2, 3, padding=1), c=conv(4, 2))
    kill(model.a, channels=[0])
    check(model, {})


def test_no_layer_vanishes():
    model = nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 4), nn.ReLU(), conv(4, 2))
    kill(model[0], model[2], channels=ALL)
    small = check(model, {"0": [0], "2": ([0], [0]), "4": (ALL, [0])})
    assert [tuple(p.shape[:2]) for p in small.parameters() if p.dim() > 1] == [(1, 3), (1, 1), (2, 1)]


def test_what_stays_for_its_own_sake_is_what_stays_anyway():
    """The output is constant, yet the layers that make it stay: with the channels that others keep."""
    model = Net(
        lambda m, x: m.d(F.adaptive_avg_pool2d(m.a(x), 1) * m.c(m.b(m.a(x)))),
        a=conv(3, 4),
        b=conv(4, 3),
        c=conv(3, 4),
        d=conv(4, 2),
    )
    kill(model.a, channels=[0])
    kill(model.d, channels=ALL)
    small = check(model, {"a": [1, 2, 3], "b": (ALL, [1, 2, 3]), "c": [0], "d": (ALL, [0])})
    assert shapes(small)["a.weight"] == (3, 3, 1, 1)


def test_what_nobody_in_the_network_reads_stays():
    """The user may read it, where it is kept."""

    def forward(m, x):
        x = F.relu(m.a(x))
        m.kept = m.c(x)
        return m.b(x)

    model = Net(forward, a=conv(3, 4), b=conv(4, 2), c=conv(4, 3))
    kill(model.a, channels=[0])
    small = check(model, {"a": [1, 2, 3], "b": (ALL, [1, 2, 3]), "c": (ALL, [1, 2, 3])})
    torch.testing.assert_close(small.kept, model.kept)
