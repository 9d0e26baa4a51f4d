"""Graphs out of pickles."""

import pickle

import torch
from torch import fx, nn

import fadeout
from fadeout.torch_bridge.retracing import Retracer


def test_a_tensor_of_a_size_that_is_traced():
    class Triangle(nn.Module):
        def forward(self, x):
            ones = torch.ones(x.size(0), x.size(0)).tril() / torch.tensor(x.size(0))
            return ones + torch.arange(x.size(0))

    before = torch.ones
    graph = Retracer().trace(Triangle())
    assert torch.ones is before
    module = fx.GraphModule(nn.Module(), graph)
    for size in (2, 3):
        x = torch.zeros(size)
        assert torch.equal(module(x), Triangle()(x))
    fx.symbolic_trace(nn.ReLU())  # as before: nothing is left behind


class Causal(nn.Module):
    """An addition whose sides keep different channels, and a mask of the size of the input."""

    def __init__(self):
        super().__init__()
        self.one, self.other, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        mask = torch.ones(x.size(1), x.size(1)).tril()
        return self.head(mask @ (self.one(x).relu() + self.other(x).relu()))


def test_a_compact_network_that_makes_tensors_is_pickled():
    torch.manual_seed(0)
    model = Causal()
    with torch.no_grad():
        for layer, dead in ((model.one, [0, 1]), (model.other, [1, 2])):
            layer.weight[dead], layer.bias[dead] = 0, 0
    small = fadeout.compact(model, torch.randn(2, 3, 4))
    assert isinstance(small, fx.GraphModule)
    twin = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(small))))
    x = torch.randn(2, 5, 4)
    assert torch.equal(twin(x), small(x))
