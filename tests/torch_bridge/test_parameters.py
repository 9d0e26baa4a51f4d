"""Which parameters take part, and under which names."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from fadeout import SelectiveWeightDecay
from fadeout.torch_bridge.parameters import named


class Nested(nn.Module):
    """Its own children bear a wrapper's name, and must keep it."""

    def __init__(self):
        super().__init__()
        self.module = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.norm(self.module(x)))


NAMES = ["module.weight", "module.bias", "norm.weight", "norm.bias", "head.weight", "head.bias"]


def compiled(model):
    return torch.compile(model, backend="eager")


@pytest.fixture
def prune():
    def build(model, optimizer=None, **kwargs):
        optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
        return SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=5, **kwargs)

    return build


@pytest.mark.parametrize(
    "wrap",
    [
        lambda m: m,
        nn.DataParallel,
        compiled,
        AveragedModel,
        lambda m: nn.DataParallel(compiled(m)),
        lambda m: compiled(nn.DataParallel(m)),
        lambda m: AveragedModel(nn.DataParallel(m)),
    ],
    ids=["bare", "parallel", "compiled", "averaged", "parallel(compiled)", "compiled(parallel)", "nested"],
)
def test_names_never_carry_the_prefix_of_a_wrapper(wrap):
    assert list(named(wrap(Nested()))) == NAMES


def test_wrappers_inside_the_model_leave_no_trace_either():
    model = Nested()
    model.head = compiled(model.head)
    model.module = nn.DataParallel(model.module)
    assert list(named(model)) == NAMES


def test_names_inside_a_sequence_stay():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 1)))
    assert list(named(nn.DataParallel(model))) == ["0.weight", "0.bias", "1.0.weight", "1.0.bias"]


def test_tied_parameters_come_once():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    assert list(named(model)) == ["0.weight"]


def test_by_default_matrices_and_filters(prune):
    assert list(prune(Nested()).masks()) == ["module.weight", "head.weight"]
    assert list(prune(nn.Conv1d(2, 3, 3)).masks()) == ["weight"]


def test_a_predicate_chooses(prune):
    chosen = prune(Nested(), prunable=lambda name, p: name.startswith("norm") and p.dim() == 1)
    assert list(chosen.masks()) == ["norm.weight", "norm.bias"]


@pytest.mark.parametrize(
    "names", [["head.bias", "module.weight"], (n for n in ["module.weight", "head.bias"])]
)
def test_names_choose_in_the_order_of_the_model(prune, names):
    assert list(prune(Nested(), prunable=names).masks()) == ["module.weight", "head.bias"]


def test_one_name_is_a_name_and_not_its_letters(prune):
    assert list(prune(Nested(), prunable="head.weight").masks()) == ["head.weight"]


def test_names_fit_a_wrapped_model_too(prune):
    wrapped = nn.DataParallel(compiled(Nested()))
    assert list(prune(wrapped, prunable=["head.weight"]).masks()) == ["head.weight"]


def test_frozen_parameters_are_left_out(prune):
    model = Nested()
    model.module.weight.requires_grad_(False)
    with pytest.warns(UserWarning, match=r"1 prunable parameters are frozen .* 'module\.weight'"):
        assert list(prune(model).masks()) == ["head.weight"]


def test_adapters_on_a_frozen_network_are_said_to_be_little(prune):
    """As LoRA leaves it; one warning for both, at the line that builds the pruner."""
    model = nn.Sequential(nn.Linear(100, 100).requires_grad_(False), nn.Linear(10, 20))
    words = (
        r"1 prunable .* frozen .* '0\.weight', with 96.9 % of .*, so that only 1.94 % of the model's weights"
    )
    with pytest.warns(UserWarning, match=words) as said:
        prune(model)
    assert len(said) == 1
    assert "fadeout/methods" not in said[0].filename


def test_a_frozen_parameter_that_is_named_is_refused(prune):
    model = Nested()
    model.module.weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"'module\.weight', which is frozen"):
        prune(model, prunable=["module.weight"])


def test_parameters_that_the_optimizer_does_not_hold_are_left_out(prune):
    model = Nested()
    with pytest.warns(UserWarning, match=r"only 23.5 % .* the optimizer does not hold the others"):
        pruner = prune(model, torch.optim.SGD(model.head.parameters(), lr=0.1))
    assert list(pruner.masks()) == ["head.weight"]


def test_parameters_of_several_optimizers_take_part_together(prune):
    model = Nested()
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.head, model.module)]
    assert list(prune(model, optimizers).masks()) == ["module.weight", "head.weight"]


def test_numbers_that_cannot_fade_are_left_out(prune, bare):
    model = bare(w=[[1.0, 2.0]], empty=torch.zeros(0, 3), complex=torch.ones(2, 2, dtype=torch.complex64))
    assert list(prune(model).masks()) == ["w"]


def test_the_choice_is_made_once(prune, train):
    """What joins the optimizer or thaws later does not."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight.requires_grad_(False)
    optimizer = torch.optim.SGD([*model[0].parameters(), *model[1].parameters()], lr=0.1)
    with pytest.warns(UserWarning, match="frozen"):
        pruner = prune(model, optimizer)
    model[1].weight.requires_grad_(True)
    optimizer.add_param_group({"params": list(model[2].parameters())})
    model(torch.ones(1, 2)).sum().backward()
    with pytest.warns(UserWarning, match=r"1\.weight, 2\.weight began to train after the pruner was built"):
        optimizer.step()
    assert list(pruner.masks()) == ["0.weight"]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["hed.weight"], r"'hed.weight'.*head.weight"),  # and says what the model has
        (["module.weight"], r"'module.weight'.*optimizer does not hold"),
    ],
)
def test_names_that_do_not_fit_are_refused(prune, names, words):
    model = Nested()
    with pytest.raises(ValueError, match=words):
        prune(model, torch.optim.SGD(model.head.parameters(), lr=0.1), prunable=names)
