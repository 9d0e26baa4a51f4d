"""For the tests of networks: sizes, by hand and as they are, and whether one trains and can be traced."""

import torch

from fadeout import models


def on_meta(name, *args, **kwargs):
    """One of the networks, without numbers."""
    with torch.device("meta"):
        return getattr(models, name)(*args, **kwargs)


def size(model):
    return sum(p.numel() for p in model.parameters())


def conv(f_in, f_out, kernel):
    return f_in * f_out * kernel**2


def norm(maps):
    return 2 * maps


def linear(inputs, outputs):
    return inputs * outputs + outputs


def spatial(module, side):
    return tuple(module(torch.empty(1, 3, side, side, device="meta")).shape[2:])


def check_training_and_trace(model, inputs, others):
    """Every parameter gets a gradient, and a trace computes the same, for other inputs too."""
    model(*inputs).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    model.eval()
    traced = torch.fx.symbolic_trace(model)
    for each in (inputs, others):
        assert torch.equal(traced(*each), model(*each))
