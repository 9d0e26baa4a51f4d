"""Modules in the place of others."""

import pytest
import torch
from torch import nn

import fadeout
from fadeout.torch_bridge.submodules import replaced


def test_a_module_is_replaced_wherever_it_is():
    shared, other = nn.Linear(2, 2), nn.ReLU()
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(nn.Tanh(), shared), "c": nn.Linear(2, 2)})
    assert replaced(model, {shared: other}) is model
    assert model["a"] is model["b"][1] is other
    assert type(model["c"]) is nn.Linear


def test_a_network_may_be_replaced_itself():
    model, other = nn.Linear(2, 2), nn.ReLU()
    assert replaced(model, {model: other}) is other
    assert not model._modules


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("number", [0, 1])
def test_a_compacted_encoder_takes_padding(number):
    """Where nobody wants gradients, an encoder hands nested tensors to its layers."""
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2).eval()
    attention = model.layers[number].self_attn
    with torch.no_grad():
        attention.in_proj_weight[16:20] = 0  # the values of the first head
        attention.in_proj_bias[16:20] = 0
    x, padding = torch.randn(2, 4, 8), torch.zeros(2, 4, dtype=torch.bool)
    padding[1, 2:] = True
    small = fadeout.compact(model, x)
    assert small.layers[number].self_attn.num_heads == 1
    with torch.no_grad():
        wanted, found = (one(x, src_key_padding_mask=padding)[~padding] for one in (model, small))
    torch.testing.assert_close(found, wanted)
