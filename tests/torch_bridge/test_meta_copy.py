"""The copy of a network without weights and hooks; that of sharded ones is tested over several processes."""

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fadeout.torch_bridge import meta_copy
from fadeout.torch_bridge.meta_copy import _meta_copy, traceable


def test_a_network_in_one_process_is_traced_itself():
    model, example = nn.Linear(2, 3), torch.zeros(1, 2)
    assert traceable(model, example) == (model, example)


def test_the_copy_has_shapes_and_ties_but_no_weights_and_no_hooks():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    model[0].register_forward_hook(lambda *args: 1 / 0)
    copied = _meta_copy(model, {})
    assert [type(module) for module in copied.modules()] == [type(module) for module in model.modules()]
    assert all(tensor.is_meta for tensor in (*copied.parameters(), *copied.buffers()))
    assert copied[2].weight is copied[0].weight
    assert copied(torch.zeros(4, 3, device="meta")).shape == (4, 3)
    assert not model[0].weight.is_meta


def test_examples_keep_their_form(monkeypatch):
    """A mapping has keyword arguments, and must not become one that is positional."""
    monkeypatch.setattr(meta_copy, "is_distributed", lambda parameter: True)
    x = torch.ones(2)
    for example in ({"x": x, "more": [x, 3]}, (x, {"y": x}), x):
        _, found = traceable(nn.Linear(2, 2), example)
        mine, theirs = pytree.tree_flatten(example), pytree.tree_flatten(found)
        assert mine[1] == theirs[1]
        assert all(one.is_meta for one in theirs[0] if isinstance(one, torch.Tensor))
