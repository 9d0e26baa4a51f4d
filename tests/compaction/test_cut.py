"""Cutting: what is sliced, renamed and rewritten, and the plan of it."""

import torch
from support.helpers import Net, conv, kill
from support.small_networks import IMAGES, chain, residual
from torch import nn

import fadeout
from fadeout.compaction.cut import choose_by_mode, cut
from fadeout.graph.analysis import analyse
from fadeout.graph.gather import Gather
from fadeout.graph.trace import trace


def cut_of(model, **options):
    return cut(analyse(trace(model, IMAGES), **options))


def test_slices_and_plan():
    found = cut_of(chain())
    assert not found.rewritten
    assert found.slices["1.weight"][0].tolist() == [0, 3]
    assert found.plan.kept["_0"] == [0, 3]
    assert found.plan.was["3.weight"] == [2, 4, 3, 3]
    assert found.plan.inputs == [{"shape": [2, 3, 6, 6], "dtype": "float64"}]
    assert (found.renamed, found.plan.biases, found.plan.constants) == ({}, [], {})


def test_modules_beside_a_gather_are_renamed():
    layers = {"a": conv(3, 4), "b": conv(3, 4), "c": conv(4, 2)}
    model = Net(lambda m, x: m.c(m.a(x) + m.b(x)), **layers).double()
    kill(model.a, channels=[0])
    found = cut_of(model)
    assert found.renamed == {"a": "a.0"}
    assert (found.name_now("a.weight"), found.name_now("b.weight")) == ("a.0.weight", "b.weight")
    assert isinstance(found.model.get_submodule("a.1"), Gather)
    assert found.plan.was == {"a.0.weight": [4, 3, 1, 1], "a.0.bias": [4]}


def test_gathers_in_a_rewritten_forward_keep_the_names_that_files_know():
    found = cut_of(residual())
    assert found.rewritten
    assert {name for name in found.model.state_dict() if "place" in name} == {
        *("place_0.index", "place_0.constant", "place_1.index", "place_1.constant")
    }
    assert not cut_of(residual(), keep_forward=True).rewritten


def test_a_bias_for_a_constant_is_in_the_plan():
    model = nn.Sequential(conv(3, 4), nn.Sigmoid(), conv(4, 2, bias=False)).double()
    kill(model[0], channels=[0])
    found = cut_of(model)
    assert found.plan.biases == ["2"]
    assert found.plan.constants["_1"] == {"0": 0.5}
    assert "2.bias" not in found.plan.was
    assert torch.allclose(found.model[2].bias, 0.5 * model[2].weight[:, 0, 0, 0])


def test_choose_by_mode():
    assert [choose_by_mode(training, 1, 2) for training in (True, False)] == [1, 2]


def test_the_fast_path_of_a_layer_with_a_gather_in_it_is_closed():
    """It calls none of the layer's modules, and knows nothing of a gather beside one."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    kill(layer.linear2, channels=[1, 5])
    model, x = nn.Sequential(nn.Linear(4, 8), layer), torch.randn(2, 3, 4)
    small = fadeout.compact(model, x)
    assert small[1].linear2.out_features == 6
    with torch.no_grad():
        torch.testing.assert_close(small(x), model(x))
