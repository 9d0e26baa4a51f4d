"""Blocks: whole tiles, and as near to the target as they allow."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fadeout import Blocks, Decay, Latent, Progressive, SelectiveWeightDecay, criteria, schedules
from fadeout.methods import GradualMagnitudePruning, one_shot

SIZES = st.integers(1, 7)
FADES = {
    "progressive": Progressive(),
    "latent": Latent(),
    "gradient": Decay(schedules.exponential(1.0, 1e4), weight_decay=1e-3),
    "implicit": Decay(1e30, weight_decay=1.0, mode="implicit"),
}


@st.composite
def models(draw):
    """Matrices and filters with ties among their weights, or without."""
    model = nn.Module()
    for number in range(draw(st.integers(1, 3))):
        shape = draw(st.tuples(SIZES, SIZES) | st.tuples(SIZES, SIZES, st.just(2), st.just(1)))
        value = torch.randint(-2, 3, shape).float() if draw(st.booleans()) else torch.randn(shape)
        value = value.double() if draw(st.booleans()) else value
        model.register_parameter(f"p{number}", nn.Parameter(value))
    return model


def tiles_of(weight, rows, columns):
    """The tiles, one by one, as index expressions."""
    height, width = weight.shape
    for top in range(0, height, rows):
        for left in range(0, width, columns):
            yield slice(top, top + rows), slice(left, left + columns)


def reference(model, structure, sparsity):
    """Masks of what goes, by Python's stable sort."""
    tiles = [
        (float(p.detach().flatten(1)[where].double().abs().mean()), name, where)
        for name, p in model.named_parameters()
        for where in tiles_of(p.flatten(1), structure.rows, structure.columns)
    ]
    masks = {name: torch.zeros(p.flatten(1).shape, dtype=torch.bool) for name, p in model.named_parameters()}
    wanted = round(sparsity * sum(p.numel() for p in model.parameters()))
    gone = 0
    for _, name, where in sorted(tiles, key=lambda tile: tile[0]):
        size = masks[name][where].numel()
        if abs(gone + size - wanted) > abs(gone - wanted):
            break
        masks[name][where] = True
        gone += size
    return masks, gone, wanted


@given(models(), SIZES, SIZES, st.floats(0.01, 0.99))
def test_whole_tiles_the_lowest_and_the_nearest_number(model, rows, columns, sparsity):
    structure = Blocks(rows, columns)
    expected, gone, wanted = reference(model, structure, sparsity)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        pruner = SelectiveWeightDecay(model, optimizer, sparsity=sparsity, steps=5, structure=structure)
    except ValueError:  # only where nothing would go, or everything
        assert gone in (0, sum(p.numel() for p in model.parameters()))
        return
    masks = pruner.masks()
    assert abs(gone - wanted) <= rows * columns / 2
    assert masks.total - masks.left == gone
    for name, mask in masks.items():
        found = ~mask.flatten(1)
        assert all(found[where].all() or not found[where].any() for where in tiles_of(found, rows, columns))
        assert torch.equal(found, expected[name]), name


@given(models(), SIZES, SIZES, st.floats(0.01, 0.99))
def test_a_step_takes_that_set_and_leaves_every_other_bit(model, rows, columns, sparsity):
    """Magnitudes are ranked without scores in a step: the same tiles."""
    structure = Blocks(rows, columns)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    arguments = {"sparsity": sparsity, "steps": 5, "structure": structure, "fade": FADES["implicit"]}
    try:
        pruner = SelectiveWeightDecay(model, optimizer, **arguments)
    except ValueError:  # nothing would go, or everything
        return
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    masks = pruner.masks()
    optimizer.step()
    for name, p in model.named_parameters():
        assert torch.equal(p[masks[name]], before[name][masks[name]])
        assert p[~masks[name]].abs().sum() < 1e-20


def test_equal_tiles_give_the_exact_number():
    model = nn.Sequential(nn.Linear(32, 48), nn.Linear(48, 16))
    assert one_shot(model, 2 / 3, structure=Blocks(16, 16)).left == 3 * 256
    for layer in model:
        tiles = layer.weight.unfold(0, 16, 16).unfold(1, 16, 16).flatten(2)
        left = tiles.count_nonzero(2)
        assert set(left.flatten().tolist()) <= {0, 256}


def test_a_tile_as_large_as_a_matrix_is_all_of_it():
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 3, bias=False))
    nn.init.constant_(model[0].weight, 2.0)
    nn.init.constant_(model[1].weight, 1.0)
    masks = one_shot(model, 0.5, structure=Blocks(100, 100))
    assert masks["0.weight"].all()
    assert not masks["1.weight"].any()


def test_removed_tiles_stay_the_first_to_go(bare):
    """A lower one that was removed before, whatever its weights are now."""
    model = bare(w=[[9.0, 9.0, 1.0, 1.0]])
    first = one_shot(model, 0.5, structure=Blocks(1, 2))
    assert first["w"].tolist() == [[True, True, False, False]]
    with torch.no_grad():
        model.w[0, 2:] = 100.0
    assert one_shot(model, 0.5, structure=Blocks(1, 2), before=first)["w"].tolist() == first["w"].tolist()


@pytest.mark.filterwarnings("ignore:remove.. after step 60", "ignore:no weight is left in 2")
@pytest.mark.parametrize("fade", FADES)
def test_every_fade_ends_at_the_target_and_removal_is_free(make_task, train, fade):
    task = make_task("mlp")
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.05, momentum=0.9)
    pruner = SelectiveWeightDecay(
        task.model, optimizer, sparsity=0.5, steps=60, structure=Blocks(2, 3), fade=FADES[fade]
    )
    train(task, [optimizer], 60)
    assert pruner.fade <= (0.15 if fade == "gradient" else 1e-12)
    masks = pruner.remove()
    total = masks.total
    assert abs(total - masks.left - round(0.5 * total)) <= 3


@pytest.mark.filterwarnings("ignore:no weight is left in 2")
@pytest.mark.parametrize("seed", range(6))
def test_what_has_settled_is_what_goes(seed):
    """Where tiles do not divide a layer evenly, a smaller one would bring the number nearer to the target."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(23, 37), torch.nn.ReLU(), torch.nn.Linear(37, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    pruner = SelectiveWeightDecay(
        model, optimizer, sparsity=0.9, steps=40, structure=Blocks(8, 4), fade=Latent()
    )
    for _ in range(40):
        x = torch.randn(32, 23)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), x[:, :10].argmax(1)).backward()
        optimizer.step()
    assert pruner.fade == 0


def test_latents_are_thresholded_tile_by_tile(make_task, train):
    task = make_task("mlp")
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.05)
    pruner = SelectiveWeightDecay(
        task.model, optimizer, sparsity=0.5, steps=40, structure=Blocks(2, 2), fade=Latent()
    )
    train(task, [optimizer], 25)
    for name, mask in pruner.masks().items():
        assert not task.model.get_parameter(name)[~mask].any()


def test_criteria_and_held_weights(make_task, train):
    for criterion in (criteria.lamp, criteria.taylor):
        task = make_task("mlp")
        optimizer = torch.optim.SGD(task.model.parameters(), lr=0.05)
        pruner = GradualMagnitudePruning(
            task.model, optimizer, sparsity=0.5, steps=20, structure=Blocks(2, 2), criterion=criterion
        )
        train(task, [optimizer], 20)
        assert pruner.fade == 0


def test_a_weight_that_is_not_finite_is_named(bare, push):
    model = bare(w=[[1.0, float("nan")], [1.0, 2.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=5, structure=Blocks(1, 2))
    with pytest.raises(ValueError, match=r"'w' holds NaN.*step 0"):
        push(model, optimizer)


@pytest.mark.parametrize(("rows", "columns"), [(0, 4), (4, -1), (2.5, 2), (True, 2), ("16", 16)])
def test_sizes_that_are_none(rows, columns):
    with pytest.raises(ValueError, match="whole number from 1 up, got"):
        Blocks(rows, columns)


@pytest.mark.parametrize(
    ("sparsity", "said"),
    [(0.2, "in 2 tiles of at least 6 each is not even one tile: nothing would be removed"), (0.8, "left")],
)
def test_a_target_that_no_tile_is_small_enough_for(sparsity, said):
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 3, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=said):
        SelectiveWeightDecay(model, optimizer, sparsity=sparsity, steps=5, structure=Blocks(3, 3))


def test_a_parameter_without_dimensions_is_a_tile(bare):
    model = bare(scale=0.1, bias=[1.0, 2.0, 3.0])
    masks = one_shot(model, 0.5, structure=Blocks(2, 2), prunable=["scale", "bias"])
    assert not masks["scale"]  # the lowest; the two tiles of the bias have two weights and one
    assert masks["bias"].tolist() == [False, False, True]
