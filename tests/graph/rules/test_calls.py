"""Reading calls: arguments by position or by name, names of functions, calls with other values."""

import torch
import torch.nn.functional as F
from torch import fx

from fadeout.graph.rules.calls import argument, call_with, name_of, source


def nodes(function):
    return {node.name: node for node in fx.symbolic_trace(function).graph.nodes}


def test_arguments():
    found = nodes(lambda x: x.sum(1) + x.amax(dim=2))
    assert argument(found["sum_1"], 1, "dim") == 1
    assert argument(found["amax"], 1, "dim") == 2
    assert argument(found["amax"], 2, "keepdim", False) is False
    assert source(found["amax"]) is found["x"]


def test_names():
    found = nodes(lambda x: F.relu(x) + torch.relu_(x).neg_())
    assert [name_of(found[name]) for name in ("relu", "relu_", "neg_", "x")] == ["relu", "relu_", "neg_", ""]


def test_calls_with_another_value():
    found = nodes(lambda x: F.leaky_relu(x.clamp(max=1), negative_slope=0.5))
    assert call_with(found["clamp"], torch.tensor([0.0, 3.0])).tolist() == [0, 1]
    assert call_with(found["leaky_relu"], torch.tensor([-2.0])).tolist() == [-1]
    assert call_with(found["clamp"], torch.tensor([-2.0]), torch.nn.ReLU()).tolist() == [0]
