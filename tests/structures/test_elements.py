"""Structures: exact counts under every condition."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from fadeout import Decay, Elements, Latent, Progressive, SelectiveWeightDecay, criteria
from fadeout.methods import one_shot
from fadeout.selection import compiled
from fadeout.selection.compiled import CompiledPasses
from fadeout.selection.passes import Passes
from fadeout.torch_bridge.parameters import has_two_dimensions

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
AT_ONCE = Decay(1e30, weight_decay=1.0, mode="implicit")
SCOPES = pytest.mark.parametrize("scope", ["network", "layer"])

pytestmark = pytest.mark.filterwarnings("ignore:.* prunable parameters are frozen")


@st.composite
def models(draw, distinct=False):
    """Parameters in mixed dtypes and layouts, some frozen, some tied, with ties and zeros among them."""
    plans = draw(
        st.lists(
            st.tuples(
                st.integers(1, 4), st.integers(1, 5), st.sampled_from(DTYPES), st.booleans(), st.booleans()
            ),
            min_size=1,
            max_size=4,
        )
    )
    plans[0] = (*plans[0][:4], False)  # something must be left to prune
    total = sum(rows * columns for rows, columns, *_ in plans)
    # Integers up to 256 are exact in every dtype, bfloat16 included.
    numbers = draw(
        st.permutations(range(1, total + 1))
        if distinct
        else st.lists(st.integers(-2, 2), min_size=total, max_size=total)
    )
    values, model = iter(numbers), nn.Module()
    for number, (rows, columns, dtype, transposed, frozen) in enumerate(plans):
        value = torch.tensor([[next(values) for _ in range(columns)] for _ in range(rows)], dtype=dtype)
        parameter = nn.Parameter(value.t() if transposed else value, requires_grad=not frozen)
        model.register_parameter(f"p{number}", parameter)
    if draw(st.booleans()):
        model.register_parameter("tied", model.p0)
    return model


def build(model, sparsity, scope="network", **kwargs):
    sizes = [p.numel() for p in model.parameters() if p.requires_grad]  # tied ones once
    together = sizes if scope == "layer" else [sum(sizes)]
    if not any(round(sparsity * size) for size in together):
        assume(False)  # nothing to prune is an error of its own
    if all(round(sparsity * size) == size for size in together):
        assume(False)  # and so is nothing to leave
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    pruner = SelectiveWeightDecay(
        model, optimizer, sparsity=sparsity, steps=5, structure=Elements(scope=scope), **kwargs
    )
    return optimizer, pruner


def lowest_by_sort(weights, count):
    """Positions of the lowest magnitudes, ties by position, with Python's stable sort."""
    numbers = [abs(value) for weight in weights for row in weight.tolist() for value in row]
    chosen = set(sorted(range(len(numbers)), key=numbers.__getitem__)[:count])
    return [position in chosen for position in range(len(numbers))]


def flat(masks):
    return [value for mask in masks for row in mask.tolist() for value in row]


@SCOPES
@given(models(), st.floats(0.01, 0.99))
def test_exactly_the_lowest_and_exactly_so_many(scope, model, sparsity):
    _, pruner = build(model, sparsity, scope)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}  # tied ones once
    masks = pruner.masks()
    assert list(masks) == list(trained)
    for names in [[n] for n in trained] if scope == "layer" else [list(trained)]:
        weights = [trained[n] for n in names]
        count = round(sparsity * sum(w.numel() for w in weights))
        gone = [not stays for stays in flat(masks[n] for n in names)]
        assert sum(gone) == count
        assert gone == lowest_by_sort(weights, count)


@SCOPES
@given(models(distinct=True), st.floats(0.01, 0.99))
def test_a_step_takes_that_set_and_leaves_every_other_bit(scope, model, sparsity):
    """With the learning rate times the strength at 1e30 a targeted weight of at most 80 is gone at once."""
    optimizer, pruner = build(model, sparsity, scope, fade=AT_ONCE)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    gone = {n: ~mask for n, mask in pruner.masks().items()}
    optimizer.step()  # there are no gradients: the optimizer itself changes nothing
    for name, parameter in model.named_parameters():
        targeted = gone.get(name, torch.zeros_like(before[name], dtype=torch.bool))
        assert torch.equal(parameter[~targeted], before[name][~targeted])
        assert parameter[targeted].double().abs().sum() < 1e-20


@SCOPES
@given(models(distinct=True), st.floats(0.01, 0.99), st.randoms(use_true_random=False))
def test_without_ties_the_order_of_registration_does_not_matter(scope, model, sparsity, random):
    shuffled, parameters = nn.Module(), list(model.named_parameters())
    for name, parameter in random.sample(parameters, len(parameters)):
        shuffled.register_parameter(name, parameter)
    found = []
    for m in (model, shuffled):  # of the same parameters, which one pruner at a time may have
        pruner = build(m, sparsity, scope)[1]
        found.append(pruner.masks())
        pruner.detach()
    mine, theirs = found
    assert mine.keys() == theirs.keys()
    for name in mine:
        assert torch.equal(mine[name], theirs[name])


def test_a_whole_training_does_not_depend_on_the_order_of_registration(bare):
    """All arithmetic here is elementwise, so that the weights can be equal to the last bit."""
    shapes = {"a": (2, 3), "b": (3, 1), "c": (2, 2)}
    values = {n: torch.randn(*shape, dtype=torch.float64) for n, shape in shapes.items()}
    wanted = {n: torch.randn(*shape, dtype=torch.float64) for n, shape in shapes.items()}
    ends = []
    for order in ("abc", "cab"):
        model = bare(**{n: values[n].clone() for n in order})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=30)
        for _ in range(30):
            optimizer.zero_grad()
            sum((p - wanted[n]).square().sum() for n, p in model.named_parameters()).backward()
            optimizer.step()
        pruner.remove()
        ends.append(dict(model.named_parameters()))
    for name in shapes:
        assert torch.equal(ends[0][name], ends[1][name])
    assert sum(int(p.count_nonzero()) for p in ends[0].values()) == 13 - round(0.5 * 13)


def test_scope_decides_who_is_compared_with_whom():
    scores = {"small": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "large": torch.tensor([5.0, 6.0])}
    network = Elements().select(scores, 0.5)
    layer = Elements(scope="layer").select(scores, 0.5)
    assert {n: m.tolist() for n, m in network.items()} == {
        "small": [[True, True], [True, False]],
        "large": [False, False],
    }
    assert {n: m.tolist() for n, m in layer.items()} == {
        "small": [[True, True], [False, False]],
        "large": [True, False],
    }


def test_a_float64_weight_beside_float32_ones_is_not_rounded(bare):
    model = bare(w=[[1.0, 7.0, 8.0]])
    model.wide = nn.Parameter(torch.tensor([[1 - 1e-12, 5, 6]], dtype=torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = SelectiveWeightDecay(model, optimizer, sparsity=1 / 6, steps=1)
    masks = pruner.masks()
    assert (masks["w"].tolist(), masks["wide"].tolist()) == ([[True] * 3], [[False, True, True]])
    assert one_shot(model, 1 / 6).left == 5


@pytest.mark.parametrize("scope", ["network", "layer"])
def test_the_whole_network_decides_whether_to_compile(monkeypatch, scope):
    monkeypatch.setattr(compiled, "_compiled", lambda function: function)
    model = nn.Sequential(nn.Linear(300, 300, bias=False), nn.Linear(300, 300, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for steps, kind in ((10, Passes), (150_000, CompiledPasses)):
        structure = Elements(scope=scope)
        bound = structure.bind(model, [optimizer], has_two_dimensions, steps)
        bound.below(0.5)
        assert {type(finder.passes(torch.float32)) for finder in bound._finders} == {kind}


def test_tied_weights_of_two_layers_count_once():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    _, pruner = build(model, 0.75)
    assert pruner.masks().total == 16
    assert pruner.masks().left == 4


def test_channels_last_filters_are_ranked_by_position_too():
    """Equal weights: the first positions go, whatever their order in memory."""
    model = nn.Conv2d(2, 2, 2, bias=False)
    nn.init.ones_(model.weight)
    model = model.to(memory_format=torch.channels_last)
    _, pruner = build(model, 0.5)
    assert pruner.masks()["weight"].flatten().tolist() == [False] * 8 + [True] * 8


def test_an_unknown_scope_is_refused():
    with pytest.raises(ValueError, match=r"'network', 'layer'.*'global'"):
        Elements(scope="global")


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a second device: this machine has a CPU only"
)
def test_parameters_on_different_devices(bare):
    model = bare(a=[[3.0, 1.0]], b=torch.tensor([[2.0, 0.5]], device="cuda"))
    _, pruner = build(model, 0.5)
    assert pruner.masks().left == 2


class BN(nn.BatchNorm1d):
    """A norm by another name."""


class rms_norm(nn.Module):
    """As some libraries call theirs."""


@pytest.mark.parametrize("norm", [nn.LayerNorm(4), BN(4), rms_norm()], ids=lambda norm: type(norm).__name__)
def test_lamp_is_the_criterion_where_there_are_norms(norm):
    layer = nn.Linear(4, 4)
    for model, criterion in ((nn.Sequential(layer, norm), criteria.lamp), (layer, criteria.magnitude)):
        assert Elements().criterion_for(model, Latent()) is criterion
        assert Elements().criterion_for(model, Progressive()) is criteria.magnitude
