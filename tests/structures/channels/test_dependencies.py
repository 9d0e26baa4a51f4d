"""What the channels of values depend on, worked out by hand."""

import numpy as np
import torch
import torch.nn.functional as F
from support.helpers import Net, conv
from torch import nn

from fadeout.graph.analysis import analyse
from fadeout.graph.trace import trace
from fadeout.structures.channels.dependencies import find_dependencies

IMAGE = torch.zeros(1, 3, 4, 4)


def find(model, *layers):
    """The labels of values, if these layers may lose channels.

    Not of a concatenation: a part that nobody reads still has one channel there.
    """
    network = trace(model, IMAGE)
    widths = {name: model.get_submodule(name).num_features for name in layers}

    def analyse_alive(alive):
        return analyse(network, dead={name: torch.from_numpy(~mask) for name, mask in alive.items()})

    flows = analyse_alive({name: np.ones(width, bool) for name, width in widths.items()}).flows
    nodes = [node for node in flows if node.name != "cat"]
    return find_dependencies(nodes, widths, analyse_alive)


def by_name(counts):
    return {node.name: number for node, number in counts.items()}


def masks(**alive):
    return {name: np.array([c == "1" for c in mask]) for name, mask in alive.items()}


def dense():
    """Two layers read slices of what is concatenated, as in a dense block."""

    def forward(m, x):
        x = m.a(x)
        x = torch.cat([x, m.b(F.relu(m.n(x)))], 1)
        return m.c(F.relu(m.k(x)))

    norms = {"n": nn.BatchNorm2d(3), "k": nn.BatchNorm2d(5)}
    return Net(forward, a=conv(3, 3), b=conv(3, 2), c=conv(5, 2), **norms)


def test_slices_of_a_concatenation():
    labels = find(dense(), "n", "k")
    found = by_name(labels.counts(masks(n="100", k="01010")))
    assert (found["a"], found["b"]) == (2, 1)  # 0 for n, 1 for k; 0 for k, which reads it as its fourth
    assert (found["n"], found["k"]) == (1, 2)
    found = by_name(labels.counts(masks(n="001", k="00100")))
    assert (found["a"], found["b"]) == (1, 1)  # nobody reads b, but no layer vanishes


def test_at_most():
    labels = find(dense(), "n", "k")
    found = by_name(labels.most({"n": 1, "k": 2}))
    assert (found["n"], found["k"]) == (1, 2)
    assert (found["a"], found["b"]) == (3, 2)  # if they keep different ones


def test_a_sum_keeps_what_is_alive_on_either_side():
    def forward(m, x):
        return m.c(F.relu(m.n(m.a(x)) + m.k(m.b(x))))

    model = Net(forward, a=conv(3, 4), b=conv(3, 4), c=conv(4, 2), n=nn.BatchNorm2d(4), k=nn.BatchNorm2d(4))
    found = by_name(find(model, "n", "k").counts(masks(n="1100", k="0110")))
    assert (found["a"], found["b"], found["add"], found["relu"]) == (2, 2, 3, 3)
    found = by_name(find(model, "n").counts(masks(n="1000")))
    assert (found["a"], found["b"], found["add"]) == (1, 4, 4)  # the other side always speaks


def test_flattened_channels_count_for_each_position():
    model = Net(
        lambda m, x: m.fc(F.relu(m.n(m.a(x))).flatten(1)),
        a=conv(3, 2),
        n=nn.BatchNorm2d(2),
        fc=nn.Linear(32, 2),
    )
    assert by_name(find(model, "n").counts(masks(n="01")))["flatten"] == 16
    assert by_name(find(model, "n").most({"n": 1}))["flatten"] == 16


def gated(forward, convolutions="ab", norms="nk"):
    sides = {name: conv(3, 4) for name in convolutions}
    return Net(forward, **sides, c=conv(4, 2), **{name: nn.BatchNorm2d(4) for name in norms})


def test_a_product_is_alive_only_if_both_of_its_sides_are():
    labels = find(gated(lambda m, x: m.c(m.n(m.a(x)) * m.k(m.b(x)))), "n", "k")
    found = by_name(labels.counts(masks(n="1110", k="0111")))
    assert (found["a"], found["b"], found["mul"]) == (2, 2, 2)
    assert labels.counts(masks(n="1000", k="0001")) is None  # no value loses all, and more may stay for that
    assert by_name(labels.most({"n": 3, "k": 2}))["mul"] == 2


def test_what_labels_cannot_say():
    """A sum one of whose sides is a product."""
    model = gated(lambda m, x: m.c(m.n(m.a(x)) * m.k(m.b(x)) + m.j(m.d(x))), "abd", "nkj")
    assert find(model, "n", "k", "j") is None
