"""Sparse products: the same outputs, chosen where they are faster. The times are the tests' own."""

import copy
import pickle
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import fadeout
from fadeout._timing import Timing
from fadeout.compaction import sparse_products
from fadeout.compaction.sparse_products import SparseConvolution, SparseLinear
from fadeout.graph.heads import SplitHeads


@pytest.fixture
def times(monkeypatch):
    """Sets how many milliseconds each way takes, with what spread."""
    chosen = {"dense": 4.0, "csr": 1.0, "sparse": 2.0, "spread": 0.0}

    def race(contestants, wait=None):
        for act in contestants.values():
            act()
        half = chosen["spread"] / 2
        seconds = {name: 1e-3 * chosen.get(name, 0.5) for name in contestants}
        return {name: Timing(t * (1 - half), t, t * (1 + half)) for name, t in seconds.items()}

    monkeypatch.setattr(sparse_products, "race", race)
    return chosen


def pruned(*layers, sparsity=0.9, structure=None):
    torch.manual_seed(0)
    model = nn.Sequential(*layers)
    fadeout.methods.one_shot(model, sparsity, structure=structure)
    return model


def kinds(network):
    return [type(module) for module in network.module]


@pytest.mark.parametrize("shape", [(1, 24), (5, 24), (2, 3, 24), (24,)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers(times, shape, bias):
    model = pruned(nn.Linear(24, 16, bias=bias), nn.GELU(), nn.Linear(16, 8, bias=bias))
    x = torch.randn(shape)
    fast = fadeout.sparse(model, x)
    assert kinds(fast) == [SparseLinear, nn.GELU, SparseLinear]
    torch.testing.assert_close(fast(x), model(x))
    assert [choice.product for choice in fast.choices] == ["csr", "csr"]
    assert fast.choices[0].milliseconds == {"dense": 4.0, "csr": 1.0}


@pytest.mark.parametrize("shape", [(1, 8, 5, 5), (3, 8, 6, 4), (8, 5, 5)])
@pytest.mark.parametrize("stride", [1, 2, (1, 3)])
def test_convolutions_of_one_by_one(times, shape, stride):
    model = pruned(nn.Conv2d(8, 12, 1, stride=stride), nn.ReLU(), nn.Conv2d(12, 6, 1, bias=False))
    x = torch.randn(shape)
    fast = fadeout.sparse(model, x)
    assert kinds(fast) == [SparseConvolution, nn.ReLU, SparseConvolution]
    torch.testing.assert_close(fast(x), model(x))


def test_blocks_run_as_blocks(times):
    model = pruned(nn.Linear(64, 64), structure=fadeout.Blocks(16, 16), sparsity=0.8)
    for rows in (1, 3):
        x = torch.randn(rows, 64)
        fast = fadeout.sparse(model, x)
        assert fast.choices[0].product == "bsr 16"
        torch.testing.assert_close(fast(x), model(x))


def test_larger_kernels_groups_and_dense_layers_stay(times):
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1, groups=2), nn.Conv2d(4, 4, 1, padding=1))
    fadeout.methods.one_shot(model, 0.9)
    assert fadeout.sparse(model, torch.randn(1, 4, 5, 5)).choices == ()
    dense = fadeout.sparse(nn.Linear(4, 4), torch.zeros(1, 4))
    assert (dense.choices[0].product, dense.choices[0].why) == ("dense", "too few zeros")
    assert dense.why == "no sparse product is faster"


def test_a_product_that_is_not_faster_is_not_chosen(times):
    times["csr"] = 3.9  # within the noise
    fast = fadeout.sparse(pruned(nn.Linear(24, 16)), torch.randn(2, 24))
    assert kinds(fast) == [nn.Linear]
    assert fast.choices[0].why == "csr is 1.03 times as fast"


def test_a_busy_machine_is_said_to_be_one(times):
    times["spread"] = 0.5
    fast = fadeout.sparse(pruned(nn.Linear(24, 16)), torch.randn(2, 24))
    assert fast.choices[0].why == "4.00 times as fast, on a busy machine (spread 50%)"
    times["csr"] = 3.0  # the quartiles overlap
    fast = fadeout.sparse(pruned(nn.Linear(24, 16)), torch.randn(2, 24))
    assert fast.choices[0].product == "dense"


def test_where_the_whole_is_slower_all_is_dense(times):
    times["sparse"] = 5.0
    model = pruned(nn.Linear(24, 16))
    fast = fadeout.sparse(model, torch.randn(2, 24))
    assert kinds(fast) == [nn.Linear]
    assert fast.why == "all dense: the whole would take 1.25 times as long"


def test_it_says_what_it_chose(times):
    model = pruned(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 8))
    nn.init.ones_(model[2].weight)
    text = repr(fadeout.sparse(model, torch.randn(2, 24))).splitlines()
    assert text[0].split() == ["layer", "product", "zeros", "dense", "chosen", "why"]
    assert " ".join(text[2].split()).endswith("% 4 ms 1 ms 4.00 times as fast")
    assert text[3].split() == ["2", "dense", "0.0%", "too", "few", "zeros"]
    assert text[-1].split() == ["total", "2.00", "times", "as", "fast"]


def test_the_model_is_left_as_it_was(times, same_bits):
    model = pruned(nn.Linear(24, 16), nn.Dropout(0.5), nn.Linear(16, 8)).train()
    before = copy.deepcopy(model)
    fast = fadeout.sparse(nn.DataParallel(model), torch.randn(2, 24))
    same_bits(model, before)
    assert model.training
    assert model[1].training
    assert not model._forward_pre_hooks
    assert not fast.training
    assert not fast(torch.randn(2, 24)).requires_grad
    with pytest.raises(ValueError, match="for inference"):
        fast.train()


def test_the_example_is_left_as_it_was(times):
    class Shifts(nn.Sequential):
        def forward(self, x):
            return super().forward(x.add_(1))

    model, x = Shifts(*pruned(nn.Linear(24, 16))), torch.randn(2, 24)
    before = x.clone()
    fast = fadeout.sparse(model, x)
    assert torch.equal(x, before)
    assert kinds(fast) == [SparseLinear]


def test_a_network_that_is_one_layer(times):
    model = pruned(nn.Linear(24, 16))[0]
    fast, x = fadeout.sparse(model, torch.randn(2, 24)), torch.randn(5, 24)
    assert type(fast.module) is SparseLinear
    torch.testing.assert_close(fast(x), model(x))


def test_a_layer_at_two_places_is_sparse_at_both(times):
    shared = nn.Linear(16, 16)
    model, x = pruned(shared, nn.ReLU(), shared), torch.randn(2, 16)
    fast = fadeout.sparse(model, x)
    assert kinds(fast) == [SparseLinear, nn.ReLU, SparseLinear]
    assert fast.module[0] is fast.module[2]
    torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize("layer", [nn.Conv2d(8, 8, 1), nn.Linear(8, 8)], ids=["convolution", "linear"])
def test_outputs_can_be_viewed_as_those_of_dense_layers(times, layer):
    class Flat(nn.Sequential):
        def forward(self, x):
            return super().forward(x).view(len(x), -1)

    model = Flat(*pruned(layer))
    fast = fadeout.sparse(model, torch.randn(1, 8, 8, 8))
    assert fast.why == "2.00 times as fast"
    x = torch.randn(3, 8, 8, 8)
    torch.testing.assert_close(fast(x), model(x))


def test_layers_with_hooks_stay(times):
    """They would not be called; those that only compute a weight need not be."""
    model, x, seen = pruned(nn.Linear(24, 16), nn.Linear(16, 8)), torch.randn(2, 24), []
    model[0].register_forward_hook(lambda layer, args, output: seen.append(output) or 2 * output)
    prune.custom_from_mask(model[1], "weight", model[1].weight != 0)
    fast = fadeout.sparse(model, x)
    assert kinds(fast) == [nn.Linear, SparseLinear]
    assert fast.choices[0].why == "it has hooks, which a sparse layer would not call"
    seen.clear()
    torch.testing.assert_close(fast(x), model(x))
    assert len(seen) == 2


def test_attentions_with_hooks_stay(times):
    seen = []
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    for parameter in model.parameters():
        parameter.data.mul_(torch.rand_like(parameter) < 0.1)
    model.self_attn.register_forward_hook(lambda *_: seen.append(1))
    x = torch.randn(2, 5, 16)
    fast = fadeout.sparse(model, x)
    assert type(fast.module.self_attn) is nn.MultiheadAttention
    seen.clear()
    torch.testing.assert_close(fast(x), model(x))
    assert len(seen) == 2


@dataclass
class Named:
    logits: torch.Tensor


def test_outputs_in_a_class_of_ones_own_are_compared(times, monkeypatch):
    class Names(nn.Sequential):
        def forward(self, x):
            return Named(super().forward(x))

    monkeypatch.setattr(SparseLinear, "_multiply", lambda self, x: x.new_ones(len(x), self.out_features))
    fast = fadeout.sparse(Names(*pruned(nn.Linear(24, 16))), torch.randn(2, 24))
    assert fast.why.startswith("all dense: the outputs would differ")


def test_what_is_random_is_compared_with_the_same_numbers(times):
    class Shaken(nn.Sequential):
        def forward(self, x):
            return super().forward(x + torch.randn_like(x))

    fast = fadeout.sparse(Shaken(*pruned(nn.Linear(24, 16))), torch.randn(2, 24))
    assert kinds(fast) == [SparseLinear]


def test_autocast(times):
    """Its types have no sparse products."""
    model, x = pruned(nn.Linear(24, 16), nn.Linear(16, 8)), torch.randn(3, 24)
    fast = fadeout.sparse(model, x)
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = fast(x), model(x)
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.05)  # types included


@pytest.mark.parametrize("structure", [fadeout.Elements(), fadeout.Blocks(8, 8)], ids=["csr", "bsr"])
def test_copies(times, structure):
    x = torch.randn(3, 32)
    fast = fadeout.sparse(pruned(nn.Linear(32, 32), nn.Linear(32, 32), structure=structure), x)
    for twin in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert torch.equal(twin(x), fast(x))
        assert repr(twin) == repr(fast)
        assert twin.module[0].weight.values().data_ptr() != fast.module[0].weight.values().data_ptr()


PROJECTIONS = {"q_proj", "k_proj", "v_proj", "out_proj"}


def test_an_encoder_of_transformers(times):
    """Its fused call would read dense weights; the projections of its attention are layers too."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    fadeout.methods.one_shot(model, 0.9)
    x = torch.randn(2, 5, 16)
    fast = fadeout.sparse(model, {"src": x})
    assert {choice.name.rpartition(".")[2] for choice in fast.choices} == {"linear1", "linear2", *PROJECTIONS}
    assert all(choice.product != "dense" for choice in fast.choices)
    assert "times as fast" in fast.why
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[1, 3:] = True
    wanted, found = (one(x, src_key_padding_mask=mask)[~mask] for one in (model, fast))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "extra", [{}, {"bias": False}, {"kdim": 8, "vdim": 8}, {"add_bias_kv": True}], ids=str
)
@pytest.mark.parametrize("batch_first", [True, False])
def test_attentions(times, extra, batch_first):
    torch.manual_seed(0)
    model = nn.MultiheadAttention(16, 2, batch_first=batch_first, **extra)
    fadeout.methods.one_shot(model, 0.9)
    others = torch.randn(3, 5, extra.get("kdim", 16))
    inputs = (torch.randn(3, 5, 16), others, others)
    fast = fadeout.sparse(model, inputs)
    assert {choice.name for choice in fast.choices} == PROJECTIONS
    assert type(fast.module) is SplitHeads
    assert type(fast.module.q_proj) is SparseLinear
    for mine, theirs in zip(fast(*inputs), model.eval()(*inputs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_an_attention_of_which_no_projection_is_faster_stays_one_call(times):
    times.update({"csr": 5.0, **{f"bsr {size}": 5.0 for size in (4, 8, 16, 32)}})
    model = nn.Sequential(nn.Linear(16, 16), nn.TransformerEncoderLayer(16, 2, 32, batch_first=True))
    fadeout.methods.one_shot(model, 0.9)
    fast = fadeout.sparse(model.eval(), torch.randn(2, 5, 16))
    assert fast.why == "no sparse product is faster"
    assert type(fast.module[1].self_attn) is nn.MultiheadAttention


def test_an_attention_with_few_zeros_stays_one_call(times):
    model = nn.Sequential(nn.Linear(16, 16), nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)).eval()
    fadeout.methods.one_shot(model[0], 0.9)
    fast = fadeout.sparse(model, torch.randn(2, 5, 16))
    assert type(fast.module[0]) is SparseLinear
    assert type(fast.module[1].self_attn) is nn.MultiheadAttention


class Reader(nn.Module):
    """Uses the weights of its layer twice, once by itself."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x) @ self.layer.weight.t().contiguous().view(8, 8)


def test_a_network_that_reads_the_weights_itself_stays_dense(times):
    model = Reader()
    fadeout.methods.one_shot(model, 0.9)
    x = torch.randn(2, 8)
    fast = fadeout.sparse(model, x)
    assert fast.why.startswith("all dense: ")
    torch.testing.assert_close(fast(x), model(x))


def test_types_without_a_sparse_product_stay_dense(times):
    model, x = pruned(nn.Linear(24, 16)).half(), torch.randn(2, 24).half()
    fast = fadeout.sparse(model, x)
    torch.testing.assert_close(fast(x), model(x))


def test_for_real():
    """Whatever this machine says: the outputs are the same, and every choice has its times."""
    model = pruned(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64), sparsity=0.98)
    x = torch.randn(16, 256)
    fast = fadeout.sparse(model, x)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    assert all(set(choice.milliseconds) >= {"dense", "csr"} for choice in fast.choices)
