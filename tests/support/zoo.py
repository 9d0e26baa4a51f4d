"""What a network of another package must show: 40 % asked, and really gone."""

from collections.abc import Callable
from typing import Any

import torch
from support.helpers import size
from torch import nn

import fadeout
from fadeout import Channels
from fadeout.graph.example import Example, tensors_in
from fadeout.methods.magnitude import one_shot
from fadeout.torch_bridge.parameters import has_two_dimensions


@torch.no_grad()
def check_delivery(build: Callable[[], nn.Module], example: Any, sparsity: float = 0.4) -> nn.Module:
    """Ask for a share of the parameters, by norm, and find it gone, with the same outputs."""
    torch.manual_seed(0)
    model = build().eval()
    for module in model.modules():  # else branches that begin at zero are dead from the start
        if "Norm" in type(module).__name__ and getattr(module, "weight", None) is not None:
            nn.init.uniform_(module.weight, 0.5, 1.5)
    structure = Channels(example, by="norm")
    cost = structure.bind(model, None, has_two_dimensions).cost
    sparsity = min(sparsity, 0.9 * (1 - cost.at_most_left(1) / cost.total))
    one_shot(model, sparsity, structure=structure)
    small = fadeout.compact(model, example)
    assert size(small) <= (1 - sparsity) * size(model)
    args, kwargs = Example.of(example).fresh()
    mine, theirs = (tensors_in(each(*args, **kwargs)) for each in (model, small.eval()))
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(one.abs().max()))
    return small
