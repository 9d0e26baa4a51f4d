"""N:M: exactly n of every m stay."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.sparse import _semi_structured_conversions as semi_structured

from fadeout import NM, Decay, Latent, Progressive, SelectiveWeightDecay, criteria, schedules
from fadeout.methods import GradualMagnitudePruning, iterative, one_shot
from fadeout.selection import compiled as compiling
from fadeout.structures.nm import LowestOfGroups

FADES = {
    "progressive": Progressive(),
    "latent": Latent(),
    "gradient": Decay(schedules.exponential(1.0, 1e4), weight_decay=1e-3),
    "implicit": Decay(1e30, weight_decay=1.0, mode="implicit"),
}
PATTERNS = st.integers(2, 6).flatmap(lambda m: st.tuples(st.integers(1, m - 1), st.just(m)))


@st.composite
def scores(draw):
    """Of matrices and filters, in any memory layout, with ties or without."""
    found = {}
    for number in range(draw(st.integers(1, 3))):
        shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 13)))
        shape = (*shape, 2, 3) if draw(st.booleans()) else shape
        value = torch.randint(0, 3, shape).float() if draw(st.booleans()) else torch.rand(shape)
        if len(shape) == 4 and draw(st.booleans()):
            value = value.to(memory_format=torch.channels_last)
        found[f"p{number}"] = value
    return found


def groups(tensor, m):
    """Every group of m inputs as a row, and what is left of each row of inputs."""
    rows = tensor.movedim(1, -1).reshape(-1, tensor.shape[1])
    end = rows.shape[1] // m * m
    return rows[:, :end].reshape(-1, m), rows[:, end:]


@given(scores(), PATTERNS)
def test_exactly_n_of_every_m_stay_and_they_are_the_highest(values, pattern):
    n, m = pattern
    for name, gone in NM(n, m).select(values, 1 - n / m).items():
        marks, rest = groups(gone, m)
        assert not rest.any()
        expected = groups(values[name], m)[0].argsort(dim=1, stable=True)[:, : m - n]
        wanted = torch.zeros_like(marks).scatter_(1, expected, True)
        assert torch.equal(marks, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("n", "m", "shape"), [(12, 130, (3, 274, 2)), (2, 4, (70, 515, 3, 3)), (1, 128, (2, 130))]
)
def test_large_groups_many_pieces_and_narrow_numbers_too(n, m, shape, dtype):
    torch.manual_seed(0)
    model = nn.ParameterList([torch.randn(shape).to(dtype)])
    weight = model[0].detach().clone()
    gone = ~one_shot(model, 1 - n / m, structure=NM(n, m))["0"]
    marks, rest = groups(gone, m)
    assert not rest.any()
    expected = groups(weight.abs(), m)[0].argsort(dim=1, stable=True)[:, : m - n]
    assert torch.equal(marks, torch.zeros_like(marks).scatter_(1, expected, True))


@given(scores(), PATTERNS, st.floats(0.01, 0.99))
def test_below_the_pattern_the_number_is_exact_and_the_pattern_never_broken(values, pattern, share):
    n, m = pattern
    structure = NM(n, m)
    sparsity = share * (structure.sparsity - 2e-3)
    marks = structure.select(values, sparsity)
    total = sum(structure.grouped(value.shape) for value in values.values())
    assert sum(int(mark.sum()) for mark in marks.values()) == round(sparsity * total)
    complete = structure.select(values, structure.sparsity)
    assert all(not (marks[name] & ~complete[name]).any() for name in values)


def test_by_hand():
    weights = {"w": torch.tensor([[1.0, 4.0, 3.0, 2.0, 5.0], [2.0, 2.0, 2.0, 2.0, 0.0]])}
    found = NM(2, 4).select(weights, 0.5)["w"]
    assert found.tolist() == [[True, False, False, True, False], [True, True, False, False, False]]


def test_a_two_of_four_result_is_what_semi_structured_tensors_take():
    """The conversion to their form and back loses nothing; where the pattern is broken it would."""
    model = nn.Linear(64, 32, bias=False)
    one_shot(model, 0.5, structure=NM(2, 4))
    weight = model.weight.detach().half()
    packed, where = semi_structured.sparse_semi_structured_from_dense_cutlass(weight)
    assert packed.numel() == weight.numel() // 2
    back = semi_structured.sparse_semi_structured_to_dense_cutlass(packed, where)
    assert torch.equal(back, weight)
    broken = torch.ones_like(weight)
    again = semi_structured.sparse_semi_structured_from_dense_cutlass(broken)
    assert not torch.equal(semi_structured.sparse_semi_structured_to_dense_cutlass(*again), broken)


@pytest.mark.filterwarnings("ignore:remove.. after step 60")
@pytest.mark.parametrize("fade", FADES)
def test_every_fade_ends_in_the_pattern_and_removal_is_free(make_task, train, fade):
    task = make_task("conv")
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.05, momentum=0.9)
    pruner = SelectiveWeightDecay(
        task.model, optimizer, sparsity=0.5, steps=60, structure=NM(1, 2), fade=FADES[fade]
    )
    train(task, [optimizer], 60)
    assert pruner.fade <= (0.15 if fade == "gradient" else 1e-12)
    for name in pruner.remove():
        weight = task.model.get_parameter(name)
        assert (groups(weight, 2)[0].count_nonzero(1) == 1).all(), name


def test_a_schedule_may_end_there(make_task, train):
    task = make_task("mlp")
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.05)
    pruner = SelectiveWeightDecay(
        task.model, optimizer, sparsity=schedules.cubic(0.5, window=(0, 0.5)), steps=40, structure=NM(2, 4)
    )
    train(task, [optimizer], 40)
    assert pruner.fade == 0
    assert all((groups(mask, 4)[0].sum(1) == 2).all() for mask in pruner.masks().values())


def test_in_rounds_and_held(make_task, train):
    task = make_task("mlp")
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.05)
    masks = iterative(task.model, optimizer, lambda number: None, sparsity=0.5, structure=NM(2, 4))
    assert all((groups(mask, 4)[0].sum(1) == 2).all() for mask in masks.values())
    for criterion in (criteria.lamp, criteria.taylor):
        task = make_task("mlp")
        optimizer = torch.optim.SGD(task.model.parameters(), lr=0.05)
        pruner = GradualMagnitudePruning(
            task.model, optimizer, sparsity=0.5, steps=20, structure=NM(2, 4), criterion=criterion
        )
        train(task, [optimizer], 20)
        assert pruner.fade == 0


def test_thirds_need_not_be_written_out(bare):
    model = bare(w=torch.randn(4, 9))
    assert one_shot(model, 0.333, structure=NM(2, 3)).left == 24


def test_repr_says_how_many_are_left_alone():
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=5, structure=NM(2, 4))
    assert "42 weights of 2 parameters, 10 weights left alone" in repr(pruner)
    assert pruner.masks()["0.weight"][:, 4:].all()


def test_a_weight_that_is_not_finite_is_named(bare, push):
    model = bare(w=[[1.0, float("inf"), 1.0, 2.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=5, structure=NM(2, 4))
    with pytest.raises(ValueError, match=r"'w' holds NaN or infinite.*step 0"):
        push(model, optimizer)


def test_targets_and_patterns_that_cannot_be():
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"keeps 2 of every 4 .* at most 0.5 .* got sparsity=0.9"):
        SelectiveWeightDecay(model, optimizer, sparsity=0.9, steps=5, structure=NM(2, 4))
    with pytest.raises(ValueError, match=r"sparsity=0\.01 of 16 weights in groups is not even one"):
        SelectiveWeightDecay(model, optimizer, sparsity=0.01, steps=5, structure=NM(2, 4))
    with pytest.raises(ValueError, match="none of the prunable parameters has 16 inputs"):
        SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=5, structure=NM(8, 16))
    with pytest.raises(ValueError, match=r"n is below m; got NM\(4, 4\)"):
        NM(4, 4)
    with pytest.raises(ValueError, match="n is a whole number from 1 up, got 0"):
        NM(0, 4)


def test_the_pattern_says_its_sparsity_itself():
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert SelectiveWeightDecay(model, optimizer, steps=5, structure=NM(1, 4)).sparsity == 0.75


@pytest.fixture(scope="module")
def compiler():
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        works = compiling.compiles(
            lambda: scaled(torch.ones(2, 4), (2, 4), 0.5, compiles=True), 0, compile=True
        )
    if not works:
        pytest.skip(f"no compiler here: {notices[-1].message}")


def scaled(weight, pattern, factor, compiles):
    """The weights after their lowest have faded, by compiled code or not."""
    found = weight.clone()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "WORTH", 1)
        bound = SimpleNamespace(structure=NM(*pattern), compiles=compiles)
        LowestOfGroups(bound).scale_(found, factor)  # pyright: ignore[reportArgumentType]
    return found


@st.composite
def weights(draw):
    """Of any sign and layout, zeros, denormal numbers and equal magnitudes among them."""
    shape = draw(st.tuples(st.integers(1, 5), st.integers(1, 21), st.just(2), st.integers(1, 3)))
    torch.manual_seed(draw(st.integers(0, 9)))
    value = torch.randn(shape) if draw(st.booleans()) else torch.randint(-2, 3, shape).float()
    value *= torch.tensor(draw(st.sampled_from([1.0, 2e-38, 1e-44, 1e38])))
    form = draw(st.sampled_from(["matrix", "contiguous", "channels_last", "other"]))
    if form == "matrix":
        return value.flatten(2)[..., 0].contiguous()
    if form == "other":
        return value.transpose(0, 3)
    return value.to(memory_format=getattr(torch, f"{form}_format" if form == "contiguous" else form))


def by_sort(weight, pattern, factor):
    """What fading is: a stable sort, a product, and zero for what becomes denormal."""
    n, m = pattern
    whole = weight.movedim(1, -1).clone()
    end = whole.shape[-1] // m * m
    rows = whole[..., :end].reshape(-1, m)
    gone = torch.zeros_like(rows, dtype=torch.bool)
    gone.scatter_(1, rows.abs().argsort(dim=1, stable=True)[:, : m - n], True)
    shrunk = rows * factor
    shrunk[shrunk.abs() < torch.finfo(weight.dtype).tiny] = 0
    whole[..., :end] = torch.where(gone, shrunk, rows).view(whole[..., :end].shape)
    return whole.movedim(-1, 1)


@given(weights(), st.sampled_from([(1, 2), (2, 4), (3, 4), (2, 5)]), st.sampled_from([0.999, 0.3, 0.0]))
def test_compiled_or_not_the_lowest_fade_to_the_last_bit(compiler, weight, pattern, factor):
    wanted = by_sort(weight, pattern, factor)
    for compiles in (False, True):
        assert torch.equal(scaled(weight, pattern, factor, compiles), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(600, 515, 3, 3), (700, 1024)])
def test_large_ones_in_pieces_and_shards_too(compiler, shape, dtype):
    torch.manual_seed(0)
    weight = torch.randn(shape).to(dtype)
    whole = scaled(weight, (2, 4), 0.7, compiles=False)
    if dtype != torch.bfloat16:  # whose products are rounded once more
        assert torch.equal(whole, by_sort(weight, (2, 4), 0.7))
    assert torch.equal(scaled(weight, (2, 4), 0.7, compiles=True), whole)
    shards = [scaled(part, (2, 4), 0.7, compiles=bool(i % 2)) for i, part in enumerate(weight.chunk(3))]
    assert torch.equal(torch.cat(shards), whole)


def steps_of(structure, width=256):
    """A layer, after some steps of a training in which its weights fade."""
    torch.manual_seed(0)
    model = nn.Linear(width, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pruner = SelectiveWeightDecay(model, optimizer, steps=8, structure=structure)
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.randn(4, width)).square().mean().backward()
        optimizer.step()
    assert pruner.fade == 0
    return model.weight.detach()


def test_a_training_is_the_same_compiled_or_not(compiler, monkeypatch):
    plain = steps_of(NM(2, 4, compile=False))
    seen, own = [], compiling._shrink_lowest
    function = compiling._compiled(own)
    monkeypatch.setattr(compiling, "_compiled", lambda what: seen.append(what) or function)
    assert torch.equal(steps_of(NM(2, 4, compile=True)), plain)
    assert seen == [own] * 9  # once to try


def test_without_a_compiler_it_goes_on_without_it(monkeypatch):
    def fails(function):
        raise RuntimeError("no g++ found")

    monkeypatch.setattr(compiling, "_compiled", fails)
    with pytest.warns(UserWarning, match=r"does not work here \(no g\+\+ found\)") as notices:
        faded = steps_of(NM(2, 4, compile=True))
    assert len(notices) == 1
    assert torch.equal(faded, steps_of(NM(2, 4, compile=False)))
    steps_of(NM(12, 32, compile=True))  # too many comparisons to be compiled


def test_where_nothing_is_in_a_group_nothing_fades():
    weight = torch.randn(4, 3)
    for compiles in (False, True):
        assert torch.equal(scaled(weight, (2, 4), 0.5, compiles), weight)
