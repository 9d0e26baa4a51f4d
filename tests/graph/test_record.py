"""A forward that is recorded while it runs: control flow, arguments, results."""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from support.helpers import OfTwo, conv, kill, size
from torch import Tensor, nn

import fadeout
from fadeout.graph.sizes import attribute_of
from fadeout.graph.trace import trace

X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


class Masked(nn.Module):
    """Asks whether an argument is there, for a dtype, a rank and a flag."""

    def __init__(self):
        super().__init__()
        self.a, self.b = conv(3, 6), conv(6, 2)
        self.scale = False

    def forward(self, x: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        if x.dim() != 4 or x.dtype == torch.float16 or x.shape[1] != 3:
            raise ValueError("images")
        x = F.relu(self.a(x))
        if mask is not None:
            x = x * mask
        if self.scale:
            x = x / x.shape[1]
        return {"scores": self.b(x), "loss": None}


def test_defaults_that_the_example_does_not_give_are_constants():
    model = Masked()
    kill(model.a, channels=[1, 2])
    small = fadeout.compact(model, X)
    assert small.a.out_channels == 4
    torch.testing.assert_close(small(X)["scores"], model(X)["scores"])
    mask = torch.ones(2, 1, 6, 6)
    small = fadeout.compact(model, {"x": X, "mask": mask})
    assert small.a.out_channels == 4
    torch.testing.assert_close(small(X, mask=mask)["scores"], model(X, mask)["scores"])


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = conv(3, 4), conv(3, 4), conv(4, 2)

    def forward(self, batch: dict) -> Tensor:
        return self.c(F.relu(self.a(batch["image"])) + self.b(batch["more"][0]))


def test_nested_inputs_and_a_forward_that_must_be_rewritten(tmp_path):
    model = Nested()
    kill(model.a, channels=[0])
    kill(model.b, channels=[1])
    batch = {"image": X, "more": [X + 1]}
    small = fadeout.compact(model, (batch,))
    assert isinstance(small, torch.fx.GraphModule)
    torch.testing.assert_close(small(batch), model(batch))
    fadeout.save(small, tmp_path / "file")
    torch.testing.assert_close(fadeout.load(tmp_path / "file", Nested)(batch), model(batch))


def test_keyword_examples_are_saved_and_loaded(tmp_path):
    model = Masked()
    kill(model.a, channels=[1, 2])
    small = fadeout.compact(model, {"x": X})
    fadeout.save(small, tmp_path / "file")
    torch.testing.assert_close(fadeout.load(tmp_path / "file", Masked)(X)["scores"], model(X)["scores"])


@dataclass
class Output:
    scores: Tensor
    loss: Tensor | None = None


Pair = namedtuple("Pair", "scores features")


@pytest.mark.parametrize("kind", [Output, Pair])
def test_results_of_other_classes_are_made_again(kind):
    def forward(m, x, y):
        features = F.relu(m.a(x)) + m.b(y)
        return kind(m.c(features), None)

    model = OfTwo(forward, a=conv(3, 4), b=conv(3, 4), c=conv(4, 2))
    kill(model.a, channels=[0])
    kill(model.b, channels=[1])
    small = fadeout.compact(model, (X, X))
    assert isinstance(small, torch.fx.GraphModule)
    assert isinstance(small(X, X), kind)
    torch.testing.assert_close(small(X, X).scores, model(X, X).scores)


def test_the_batch_size_is_asked_again():
    def forward(m, x, y):
        b, _, h, w = x.shape
        features = F.relu(m.a(x)) + m.b(y)
        return m.c(features.view(b, 4, h * w).mean(2).reshape(b, -1))

    model = OfTwo(forward, a=conv(3, 4), b=conv(3, 4), c=nn.Linear(4, 2))
    kill(model.a, channels=[0, 3])
    kill(model.b, channels=[1, 3])
    small = fadeout.compact(model, (X, X))
    assert small.c.in_features == 3
    more = torch.randn(5, 3, 4, 4)
    torch.testing.assert_close(small(more, more), model(more, more))


def test_dropout_beside_its_own_input_stays_apart():
    """In evaluation mode both are one tensor; in the graph they must be two."""
    model = OfTwo(lambda m, x, y: m.a(m.drop(x)) + x, a=conv(3, 3), drop=nn.Dropout())
    nodes = {node.name: node for node in trace(model, (X, X)).graph.nodes}
    assert nodes["add"].args == (nodes["a"], nodes["x"])


def test_numbers_that_a_module_keeps_are_known():
    class Grid(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = 3

        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(len(x), self.parts, -1)

    model = nn.Sequential(Grid())
    nodes = {node.name: node for node in trace(model, X).graph.nodes}
    assert attribute_of(nodes["reshape"].args[2]) == ("0", "parts")
    assert type(model[0].parts) is int


def test_the_model_and_its_buffers_are_left_as_they_were():
    def forward(m, x, y):
        return F.batch_norm(m.a(x), m.norm.running_mean, m.norm.running_var, training=m.training)

    model = OfTwo(forward, a=conv(3, 4), norm=nn.BatchNorm2d(4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trace(model, (X, X))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_example_does_not_fit():
    with pytest.raises(ValueError, match=r"cannot be run .* in module '0', at .*\n\(RuntimeError: Given"):
        fadeout.compact(nn.Sequential(conv(4, 2)), X)


def test_what_the_training_does_besides_is_called_still():
    """Stochastic depth, as timm and transformers write it."""

    class DropPath(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if not self.training:
                return x
            return x * (torch.rand(len(x), 1, 1, 1) < 0.5)

    def forward(m, x, y):
        return m.c(F.relu(m.drop(m.a(x)) + m.b(y)))

    model = OfTwo(forward, a=conv(3, 4), b=conv(3, 4), c=conv(4, 2), drop=DropPath())
    kill(model.a, channels=[0, 1])
    kill(model.b, channels=[1, 2])
    network = trace(model, (X, X))
    assert network.rewritable
    small = fadeout.compact(model, (X, X))
    assert size(small) < size(model)
    torch.testing.assert_close(small.eval()(X, X), model.eval()(X, X))
    torch.manual_seed(1)
    wanted = model.train()(X, X)
    torch.manual_seed(1)
    torch.testing.assert_close(small.train()(X, X), wanted)


def test_the_length_of_a_tensor_is_asked_again():
    """``len(x)`` is a plain number to Python, and would be that of the example for ever."""

    def forward(m, x, y):
        assert len([x, y]) == 2
        return m.c((F.relu(m.a(x)) + m.b(y)).view(len(x), -1))

    model = OfTwo(forward, a=conv(3, 4), b=conv(3, 4), c=nn.Linear(4 * X[0, 0].numel(), 2))
    kill(model.a, channels=[0, 3])
    kill(model.b, channels=[1, 3])
    small = fadeout.compact(model, (X, X))
    assert small.c.in_features == 3 * X[0, 0].numel()
    more = torch.randn(5, *X.shape[1:])
    torch.testing.assert_close(small(more, more), model(more, more))
