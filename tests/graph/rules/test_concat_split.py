"""Channels that are divided: what goes and what stays, worked out by hand."""

import pytest
import torch
import torch.nn.functional as F
from support.helpers import ALL, Net, check, conv, kill
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore:compact.. keeps")


def two_ways(m, x):
    """As in YOLO's C2f; what it returns depends on the mode, so that the forward must stay."""
    left, right = m.n(m.a(x)).chunk(2, 1)
    out = m.b(torch.cat([left, right, m.c(right)], 1))
    return (out, x) if m.training else out


def test_chunks_keep_the_same_channels_where_the_forward_stays():
    model = Net(two_ways, a=conv(3, 6), n=nn.BatchNorm2d(6), c=conv(3, 3), b=conv(9, 2))
    kill(model.n, channels=[0, 1, 3])  # of the halves, 0 and 1, and 0
    kept = [1, 2, 4, 5]
    columns = [1, 2, 4, 5, 6, 7, 8]
    found = {"a": kept, "n": kept, "c": (ALL, [1, 2]), "b": (ALL, columns)}
    check(model, found)


@pytest.mark.parametrize("divide", [lambda x: x.chunk(2, 1), lambda x: x.unflatten(1, (2, 3)).unbind(1)])
@torch.no_grad()  # gradients flow through no such piece
def test_a_piece_that_is_changed_in_place(divide):
    """What reads it sees both of its values: it is not followed, and the whole stays."""

    def forward(m, x):
        left, right = divide(m.a(x))
        before = left.flatten(2)
        left.add_(1)
        return m.b(left) + m.b(right) + before.mean()

    model = Net(forward, a=conv(3, 6), b=conv(3, 2))
    kill(model.a, channels=[0, 3])
    check(model, {})


def test_a_split_beside_the_channels():
    def forward(m, x):
        some, others = m.a(x).split([1, 2], dim=1)
        return m.b(some) + m.b(others.sum(1, keepdim=True))

    model = Net(forward, a=nn.Linear(4, 5), b=nn.Linear(5, 2))
    kill(model.a, channels=[3])
    check(model, {"a": [0, 1, 2, 4], "b": (ALL, [0, 1, 2, 4])}, (2, 3, 4))


@pytest.mark.parametrize("size", [lambda x: x.shape[1], lambda x: [x.size(1), 2 * x.size(1) - 3]])
def test_pieces_of_a_size_that_the_forward_asks_for(size):
    def forward(m, x):
        left, right = m.a(x).split(size(x), 1)
        return m.b(left) + m.c(right)

    model = Net(forward, a=conv(3, 6), b=conv(3, 2), c=conv(3, 2))
    kill(model.a, channels=[1, 2, 4])
    check(model, {"a": [0, 3, 5], "b": (ALL, [0]), "c": (ALL, [0, 2])})


@pytest.mark.parametrize("glu", [nn.GLU(1), lambda x: F.glu(x, dim=-3)])
def test_a_pair_of_a_gated_linear_unit_goes_if_its_first_half_is_zero(glu):
    model = Net(lambda m, x: m.b(glu(m.n(m.a(x)))), a=conv(3, 6), n=nn.BatchNorm2d(6), b=conv(3, 2))
    kill(model.n, channels=[0, 4])  # the second is a gate, of a half, and stays
    kept = [1, 2, 4, 5]
    check(model, {"a": kept, "n": kept, "b": (ALL, [1, 2])})


def test_a_pair_of_a_gated_linear_unit_goes_if_nobody_reads_it():
    model = Net(lambda m, x: m.b(F.glu(m.a(x), 1)), a=conv(3, 6), b=conv(3, 2))
    with torch.no_grad():
        model.b.weight[:, 2] = 0
    check(model, {"a": [0, 1, 3, 4], "b": (ALL, [0, 1])})


def test_a_gated_linear_unit_beside_the_channels():
    model = Net(lambda m, x: m.b(F.glu(m.a(x), dim=3)), a=conv(3, 4), b=conv(4, 2))
    kill(model.a, channels=[3], shift=0.5)
    check(model, {"a": [0, 1, 2], "b": (ALL, [0, 1, 2])})
