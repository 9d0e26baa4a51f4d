"""Masks: which weights stay."""

import copy

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune
from torch.optim.swa_utils import AveragedModel

from fadeout import Masks

HALF = {"a": [[True, False]], "b": [[False], [True], [False]]}


@pytest.fixture
def masks():
    return Masks({name: torch.tensor(values) for name, values in HALF.items()})


@pytest.fixture
def model(bare):
    return bare(a=[[1.0, 2.0]], b=[[3.0], [4.0], [5.0]], bias=[6.0])


def test_it_is_a_mapping_with_figures(masks):
    assert list(masks) == ["a", "b"]
    assert len(masks) == 2
    assert masks["a"].tolist() == [[True, False]]
    assert (masks.total, masks.left, masks.sparsity) == (5, 2, 0.6)
    assert repr(masks) == "Masks(2 parameters, 2 of 5 weights left)"
    with pytest.raises(KeyError):
        masks["bias"]


def test_masks_are_equal_where_the_same_weights_stay(masks):
    assert masks == copy.deepcopy(masks)
    assert masks != Masks({"a": masks["a"]})
    assert masks != Masks({**masks, "b": ~masks["b"]})
    assert masks != Masks({**masks, "b": masks["b"].T})  # another shape
    assert masks != dict(masks)
    with pytest.raises(TypeError, match="unhashable"):
        hash(masks)


def test_no_masks_at_all():
    assert Masks({}).sparsity == 0.0


def test_masks_are_boolean():
    with pytest.raises(ValueError, match=r"'a'.*float32.*boolean"):
        Masks({"a": torch.ones(2)})


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_sparsity_is_the_fraction_that_goes(stays):
    masks = Masks({"w": torch.tensor(stays)})
    assert masks.sparsity == pytest.approx(stays.count(False) / len(stays))
    assert masks.left == stays.count(True)


def test_apply_zeroes_what_goes_and_nothing_else(masks, model):
    masks.apply(model)
    assert model.a.tolist() == [[1.0, 0.0]]
    assert model.b.tolist() == [[0.0], [4.0], [0.0]]
    assert model.bias.tolist() == [6.0]
    assert model.a.requires_grad


@pytest.mark.parametrize(
    "wrap",
    [
        AveragedModel,
        nn.DataParallel,
        lambda model: torch.compile(model, backend="eager"),
        lambda model: nn.DataParallel(AveragedModel(model)),
    ],
    ids=["averaged", "parallel", "compiled", "both"],
)
def test_apply_reaches_through_wrappers(masks, model, wrap):
    wrapped = wrap(model)
    masks.apply(wrapped)
    inner = {name.split(".")[-1]: p for name, p in wrapped.named_parameters()}
    assert inner["a"].tolist() == [[1.0, 0.0]]
    assert inner["b"].tolist() == [[0.0], [4.0], [0.0]]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"a": [[1.0, 2.0]], "c": [[1.0]]}, r"another model.*\bb\b"),
        ({"a": [[1.0, 2.0]], "b": [[3.0, 4.0, 5.0]]}, r"'b'.*\(3, 1\).*\(1, 3\)"),
    ],
    ids=["name", "shape"],
)
def test_masks_of_another_model_change_nothing(masks, bare, hooks_on, other, words):
    model = bare(**other)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for act in (masks.apply, lambda m: masks.hold(m, optimizer)):
        with pytest.raises(ValueError, match=words):
            act(model)
    assert {n: p.tolist() for n, p in model.named_parameters()} == other
    assert hooks_on(optimizer) == 0


@pytest.mark.parametrize("several", [False, True], ids=["one optimizer", "two optimizers"])
def test_hold_keeps_zeros_through_training(masks, model, several):
    """Momentum and Adam's moments would move the zeros even without a gradient."""
    groups = [[model.a], [model.b, model.bias]] if several else [[model.a, model.b, model.bias]]
    kinds = [torch.optim.Adam, torch.optim.SGD] if several else [torch.optim.AdamW]
    optimizers = [kind(group, lr=0.1) for kind, group in zip(kinds, groups, strict=True)]
    held = masks.hold(model, optimizers if several else optimizers[0])
    assert model.a.tolist() == [[1.0, 0.0]]  # from the start, not from the first step on
    for step in range(5):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 1.0 + step)
        for optimizer in optimizers:
            optimizer.step()
        assert model.a[~masks["a"]].count_nonzero() == 0
        assert model.b[~masks["b"]].count_nonzero() == 0
    assert model.a[0, 0].item() != 1.0
    assert model.bias.item() != 6.0

    held.remove()
    for optimizer in optimizers:
        optimizer.step()
    assert model.a.count_nonzero() == 2


def test_hold_keeps_zeros_where_optimizers_step_in_turns(masks, model):
    optimizers = [torch.optim.SGD(group, lr=0.1) for group in ([model.a], [model.b, model.bias])]
    masks.hold(model, optimizers)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for optimizer in (optimizers[0], optimizers[0], optimizers[1], optimizers[1]):
        optimizer.step()
        assert model.a[~masks["a"]].count_nonzero() == 0
        assert model.b[~masks["b"]].count_nonzero() == 0


def test_hold_follows_closures(masks, model):
    held = masks.hold(model, optimizer := torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3))

    def closure():
        optimizer.zero_grad()
        loss = sum((p - 1).square().sum() for p in model.parameters())
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    assert {n: (getattr(model, n) != 0).tolist() for n in HALF} == HALF
    held.remove()


def test_what_is_saved_is_what_is_loaded(masks, tmp_path):
    turned = Masks({**masks, "turned": torch.tensor([[True, False, True], [False, False, True]]).t()})
    turned.save(tmp_path / "masks.safetensors")
    loaded = Masks.load(tmp_path / "masks.safetensors")
    assert loaded.keys() == turned.keys()
    for name in turned:
        assert torch.equal(loaded[name], turned[name])
    assert [path.name for path in tmp_path.iterdir()] == ["masks.safetensors"]


def test_a_file_that_is_none_of_ours_is_refused(tmp_path):
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(b"\x10\0\0\0\0\0\0\0{")
    with pytest.raises(ValueError, match=r"torn.safetensors"):
        Masks.load(torn)
    weights = tmp_path / "weights.safetensors"
    safetensors.torch.save_file({"a": torch.zeros(2)}, weights)
    with pytest.raises(ValueError, match=r"holds no masks .* its format is None"):
        Masks.load(weights)
    with pytest.raises(FileNotFoundError):
        Masks.load(tmp_path / "absent.safetensors")


def test_a_file_that_was_altered_is_refused(masks, tmp_path):
    path = tmp_path / "masks.safetensors"
    masks.save(path)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([1 - content[-1]]))
    with pytest.raises(ValueError, match=r"masks.safetensors was altered, its checksum differs"):
        Masks.load(path)
    path.write_bytes(content.replace(b"fadeout.masks 2", b"fadeout.masks 3"))
    with pytest.raises(ValueError, match=r"its format is 'fadeout.masks 3', not 'fadeout.masks 2'"):
        Masks.load(path)


def test_a_copy_of_the_model_is_pruned_by_the_same_masks(masks, model):
    """As with an average of the weights that was kept aside: names decide, not identities."""
    aside = copy.deepcopy(model)
    masks.apply(aside)
    assert aside.a.tolist() == [[1.0, 0.0]]
    assert model.a.tolist() == [[1.0, 2.0]]


def test_torch_prune_there_and_back():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    for layer in model:
        prune.l1_unstructured(layer, "weight", amount=0.5)
    prune.random_structured(model[0], "weight", amount=1, dim=0)  # a second mask on the first
    masks = Masks.from_torch_prune(nn.DataParallel(model))
    assert list(masks) == ["0.weight", "1.weight"]
    assert torch.equal(masks["0.weight"], model[0].weight_mask.bool())
    for layer in model:
        prune.remove(layer, "weight")
    weights = [layer.weight.detach().clone() for layer in model]
    masks.to_torch_prune(model)
    again = Masks.from_torch_prune(model)
    assert all(torch.equal(again[name], masks[name]) for name in masks)
    assert all(torch.equal(layer.weight, weight) for layer, weight in zip(model, weights, strict=True))


def test_tied_weights_are_masked_in_both_places():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    Masks({"0.weight": torch.eye(2, dtype=torch.bool)}).to_torch_prune(model)
    assert all(int(layer.weight.count_nonzero()) == 2 for layer in model)


def test_to_torch_prune_of_another_model():
    with pytest.raises(ValueError, match=r"for another model: this one has no 0.weight"):
        Masks({"0.weight": torch.ones(2, 2, dtype=torch.bool)}).to_torch_prune(nn.Linear(2, 2))


def test_no_masks_of_torch():
    with pytest.raises(ValueError, match=r"no mask of torch.nn.utils.prune is active"):
        Masks.from_torch_prune(nn.Linear(2, 2))


def test_a_folder_holds_no_masks(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder, not a file of masks"):
        Masks.load(tmp_path)
