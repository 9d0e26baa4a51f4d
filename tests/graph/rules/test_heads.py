"""Multi-head attention: which heads go, and when none does."""

import copy
import pickle

import pytest
import torch
from support.helpers import Net, OfTwo, outputs, same_outputs, shapes, size
from torch import nn
from torch.nn.utils import prune

import fadeout
from fadeout.graph.heads import Heads

X, Y = torch.randn(2, 5, 6).double(), torch.randn(2, 4, 6).double()


def attention(heads=3, **arguments):
    module = nn.MultiheadAttention(6, heads, batch_first=True, **arguments).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


@torch.no_grad()
def silence(module, heads):
    """The values of these heads are zero."""
    packed, width = module.in_proj_weight is not None, module.embed_dim
    values = module.in_proj_weight[2 * width :] if packed else module.v_proj_weight
    for head in heads:
        rows = slice(head * module.head_dim, (head + 1) * module.head_dim)
        values[rows] = 0
        module.in_proj_bias[2 * width :][rows] = 0
        if module.bias_v is not None:
            module.bias_v[..., rows] = 0


@torch.no_grad()
def ignore(module, heads):
    """Nobody reads these heads."""
    for head in heads:
        module.out_proj.weight[:, head * module.head_dim : (head + 1) * module.head_dim] = 0


def block(module=None, **arguments):
    """Attention with a residual, as in a transformer."""

    def forward(m, x):
        y = m.norm(x)
        return m.fc(x + m.attention(y, y, y, **arguments)[0])

    return Net(forward, norm=nn.LayerNorm(6), attention=module or attention(), fc=nn.Linear(6, 2)).double()


@pytest.mark.parametrize("kill", [silence, ignore])
@pytest.mark.parametrize("arguments", [{}, {"need_weights": False}])
def test_dead_heads_go(kill, arguments):
    model = block(**arguments)
    kill(model.attention, [1])
    small = fadeout.compact(model, X)
    same_outputs(model, small, X)
    same_outputs(model, small, X, training=True)
    assert isinstance(small.attention, Heads)
    assert small.attention.num_heads == 2
    kept = [0, 1, 4, 5]
    wanted = model.attention.in_proj_weight[[*kept, *(6 + i for i in kept), *(12 + i for i in kept)]]
    assert torch.equal(small.attention.in_proj_weight, wanted)
    assert torch.equal(small.attention.out_proj.weight, model.attention.out_proj.weight[:, kept])
    assert torch.equal(small.attention.out_proj.bias, model.attention.out_proj.bias)
    assert shapes(fadeout.compact(small, X)) == shapes(small)


def test_half_a_head_is_not_dead():
    model = block()
    with torch.no_grad():
        model.attention.out_proj.weight[:, 0] = 0
        model.attention.in_proj_weight[12 + 2 : 12 + 4] = 0  # but its bias speaks
    assert shapes(fadeout.compact(model, X)) == shapes(model)


def test_one_head_stays():
    model = block()
    silence(model.attention, [0, 1, 2])
    small = fadeout.compact(model, X)
    same_outputs(model, small, X)
    assert small.attention.num_heads == 1


@pytest.mark.parametrize("extra", [{"kdim": 3, "vdim": 5}, {"add_bias_kv": True, "add_zero_attn": True}])
def test_projections_of_their_own_and_added_keys(extra):
    module = attention(**extra)
    silence(module, [0])
    ignore(module, [2])
    model = OfTwo(
        lambda m, x, y: m.fc(m.attention(x, m.k(y), m.v(y), need_weights=False)[0]),
        attention=module,
        k=nn.Linear(6, module.kdim),
        v=nn.Linear(6, module.vdim),
        fc=nn.Linear(6, 2),
    ).double()
    small = fadeout.compact(model, (X, Y))
    same_outputs(model, small, (X, Y))
    assert small.attention.num_heads == 1
    for name, parameter in small.attention.named_parameters():
        axis = 2 if name in ("bias_k", "bias_v") else 1 if name == "out_proj.weight" else 0
        packed = 3 if name in ("in_proj_weight", "in_proj_bias") else 1
        if name != "out_proj.bias":
            assert parameter.shape[axis] == 2 * packed
    assert shapes(fadeout.compact(small, (X, Y))) == shapes(small)


@pytest.mark.parametrize("extra", [{}, {"kdim": 6, "vdim": 5}])
def test_inputs_and_outputs_go_too(extra):
    """Here no stream of a transformer holds them."""
    module = attention(**extra)
    layers = {"q": nn.Linear(6, 6), "v": nn.Linear(6, module.vdim), "fc": nn.Linear(6, 2)}
    model = Net(
        lambda m, x: m.fc(m.attention(m.q(x), x, m.v(x), need_weights=False)[0]), attention=module, **layers
    ).double()
    with torch.no_grad():
        for layer in (model.q, model.v):
            layer.weight[1], layer.bias[1] = 0, 0
        model.fc.weight[:, 2] = 0  # nobody reads output 2
        module.out_proj.weight[4], module.out_proj.bias[4] = 0, 3.0  # output 4 is constant
    small = fadeout.compact(model, X)
    same_outputs(model, small, X)
    assert small.fc.in_features == small.attention.embed_dim == 4
    packed = module.in_proj_weight is not None
    assert small.q.out_features == (6 if packed else 5)  # one matrix for all three: the keys need it
    assert small.v.out_features == (6 if packed else 4)


def test_weights_that_are_used_keep_all_heads():
    def forward(m, x):
        y, weights = m.attention(x, x, x)
        return m.fc(y), weights

    model = Net(forward, attention=attention(), fc=nn.Linear(6, 2)).double()
    silence(model.attention, [1])
    small = fadeout.compact(model, X)
    same_outputs(model, small, X)
    assert type(small.attention) is nn.MultiheadAttention
    model = Net(lambda m, x: m.attention(x, x, x), attention=attention())
    silence(model.attention, [1])
    same_outputs(model, fadeout.compact(model, X), X)
    model = Net(lambda m, x: m.attention(x, x, x, need_weights=False), attention=attention())
    silence(model.attention, [1])
    assert len(outputs(fadeout.compact(model, X), X)) == len(outputs(model, X))


def test_weights_that_are_unpacked_but_not_used():
    def forward(m, x):
        y, _ = m.attention(x, x, x)
        return m.fc(y)

    model = Net(forward, attention=attention(), fc=nn.Linear(6, 2)).double()
    silence(model.attention, [0])
    small = fadeout.compact(model, X)
    same_outputs(model, small, X)
    assert small.attention.num_heads == 2


@pytest.mark.parametrize("shape", [(5, 5), (6, 5, 5)])
def test_masks(shape):
    """One for all heads lets them go, one for each does not."""
    model = OfTwo(
        lambda m, x, mask: m.fc(m.attention(x, x, x, attn_mask=mask)[0]),
        attention=attention(),
        fc=nn.Linear(6, 2),
    ).double()
    silence(model.attention, [1])
    inputs = X, torch.randn(shape).double()
    small = fadeout.compact(model, inputs)
    same_outputs(model, small, inputs)
    assert small.attention.num_heads == (2 if len(shape) == 2 else 3)


def test_modules_that_must_stay_as_they_are():
    twice = Net(lambda m, x: m.attention(m.attention(x, x, x)[0], x, x)[0], attention=attention())
    hooked, pruned, tied = block(), block(), block()
    hooked.attention.register_forward_hook(lambda module, args, output: None)
    prune.identity(pruned.attention, "in_proj_weight")
    tied.attention.out_proj.weight = nn.Parameter(torch.randn(6, 6).double())
    tied.other = nn.Linear(6, 6)
    tied.other.weight = tied.attention.out_proj.weight
    for model in (twice, hooked, pruned, tied):
        ignore(model.attention, [1])
        small = fadeout.compact(model, X)
        same_outputs(model, small, X)
        assert shapes(small) == shapes(model)


# What is left is a module like any other --------------------------------------------------------------


def pruned():
    model = block()
    silence(model.attention, [1])
    return model


def test_it_saves_loads_copies_and_pickles(tmp_path):
    model = pruned()
    small = fadeout.compact(model, X)
    fadeout.save(small, tmp_path / "small.safetensors")
    loaded = fadeout.load(tmp_path / "small.safetensors", lambda: block(attention()))
    for other in (loaded, copy.deepcopy(small)):
        assert other.attention.num_heads == 2
        same_outputs(small, other, X)
    again = pickle.loads(pickle.dumps(small.attention))
    torch.testing.assert_close(again(X, X, X), small.attention(X, X, X))


@pytest.mark.slow
@pytest.mark.parametrize("need_weights", [True, False])
def test_it_is_exported(tmp_path, need_weights):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = block(need_weights=need_weights).float()
    silence(model.attention, [1])
    small = fadeout.compact(model, X.float())
    fadeout.export.onnx(small, tmp_path / "small.onnx", X.float())  # which runs and compares it
    fadeout.export.program(small, tmp_path / "small.pt2", X.float())


@pytest.mark.parametrize("extra", [{}, {"kdim": 5, "vdim": 6}])
def test_training_goes_on(extra):
    module = attention(**extra)
    layers = {"k": nn.Linear(6, module.kdim), "fc": nn.Linear(6, 2)}
    model = Net(lambda m, x: m.fc(m.attention(x, m.k(x), x)[0]), attention=module, **layers).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(network, optimizer, number):
        x = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(number)).double()
        optimizer.zero_grad()
        network(x).square().mean().backward()
        optimizer.step()

    for number in range(3):
        step(model, optimizer, number)
    masks = fadeout.Masks(
        {
            name: torch.ones_like(parameter, dtype=torch.bool)
            for name, parameter in model.named_parameters()
            if "attention" in name
        }
    )
    with torch.no_grad():
        masks["attention.in_proj_bias"][12 + 2 : 12 + 4] = False
        packed = "attention.in_proj_weight" in masks
        values = masks["attention.in_proj_weight"][12:] if packed else masks["attention.v_proj_weight"]
        values[2:4] = False
        masks["attention.out_proj.weight"][:, 2:4] = False
    masks.apply(model)
    small, carried = fadeout.compact(model, X, optimizer=optimizer)
    assert size(small) < size(model)
    masks.hold(model, optimizer)
    for number in range(3, 10):
        step(model, optimizer, number)
        step(small, carried, number)
    same_outputs(model, small, X)


def test_channels_count_attention_as_it_is_cut():
    """A norm before attention can lose channels, and the projections lose their columns."""
    model = Net(
        lambda m, x: m.fc(m.attention(*3 * [m.norm(m.conv(x)).transpose(1, 2)])[0].mean(1)),
        conv=nn.Conv1d(3, 6, 1),
        norm=nn.BatchNorm1d(6),
        attention=attention(),
        fc=nn.Linear(6, 2),
    ).double()
    example = torch.randn(2, 3, 5).double()
    with torch.no_grad():
        model.norm.weight.copy_(torch.arange(1, 7))
    structure = fadeout.Channels(example)
    bound = structure.bind(model, [torch.optim.SGD(model.parameters(), lr=0.1)], lambda name, parameter: True)
    marks = bound.select({n: p.detach().abs() for n, p in bound.parameters.items()}, 0.3)
    with torch.no_grad():
        for name, mark in marks.items():
            model.get_parameter(name)[mark] = 0
    small = fadeout.compact(model, example)
    same_outputs(model, small, example)
    alive = {layer.name: ~marks[layer.fading[0]].numpy() for layer in bound.layers}
    assert bound.cost.left(alive) == size(small)
