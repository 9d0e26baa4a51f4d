"""A model or an optimizer that changes under a pruner: the target is met in what is used, or it is said."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import fadeout
from fadeout.methods import ACDC, GradualMagnitudePruning, RigL

CHANGES = {}


def change(function):
    """A change of (model, optimizer, pruner) after two steps; what it returns is stepped from then on."""
    CHANGES[function.__name__] = function
    return function


@change
def new_head(model, optimizer, pruner):
    model[4] = nn.Linear(12, 3)
    optimizer.add_param_group({"params": list(model[4].parameters())})


@change
def layer_replaced(model, optimizer, pruner):
    model[0] = nn.Linear(6, 12)


@change
def parameter_replaced(model, optimizer, pruner):
    model[0].weight = nn.Parameter(torch.ones(12, 6))


@change
def assigned(model, optimizer, pruner):
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)


@change
def loaded(model, optimizer, pruner):
    model.load_state_dict(copy.deepcopy(model.state_dict()))


@change
def tied(model, optimizer, pruner):
    model[2].weight = model[3].weight


@change
def layers_swapped(model, optimizer, pruner):
    model[2], model[3] = model[3], model[2]


@change
def layer_deleted(model, optimizer, pruner):
    del model[2]


@change
def layer_inserted(model, optimizer, pruner):
    model.insert(0, nn.Identity())


@change
def layer_appended(model, optimizer, pruner):
    model.append(nn.Linear(3, 3))


@change
def layer_appended_and_trained(model, optimizer, pruner):
    model.append(nn.Linear(3, 3))
    optimizer.add_param_group({"params": list(model[-1].parameters())})


@change
def weight_normed(model, optimizer, pruner):
    parametrizations.weight_norm(model[0])


@change
def orthogonal(model, optimizer, pruner):
    parametrizations.orthogonal(model[2])


@change
def pruned_by_torch(model, optimizer, pruner):
    prune.l1_unstructured(model[0], "weight", 0.5)


@change
def made_double(model, optimizer, pruner):
    model.double()


@change
def made_bfloat16(model, optimizer, pruner):
    model.bfloat16()


@change
def data_of_another_shape(model, optimizer, pruner):
    model[4].weight.data = torch.ones(2, 12)
    model[4].bias.data = torch.ones(2)
    optimizer.state.clear()


@change
def data_swapped(model, optimizer, pruner):
    model[2].weight.data, model[3].weight.data = model[3].weight.data, model[2].weight.data


@change
def initialised_anew(model, optimizer, pruner):
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.reset_parameters()


@change
def frozen(model, optimizer, pruner):
    model[0].requires_grad_(False)


@change
def all_frozen_but_one(model, optimizer, pruner):
    model[:4].requires_grad_(False)


@change
def grown_nan(model, optimizer, pruner):
    model[0].weight.data[0, 0] = torch.nan


@change
def shared_memory(model, optimizer, pruner):
    model.share_memory()


@change
def optimizer_loaded(model, optimizer, pruner):
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


@change
def optimizer_state_cleared(model, optimizer, pruner):
    optimizer.state.clear()


@change
def group_taken_away(model, optimizer, pruner):
    optimizer.param_groups[0]["params"] = optimizer.param_groups[0]["params"][2:]


@change
def groups_cleared(model, optimizer, pruner):
    optimizer.param_groups.clear()


@change
def group_split(model, optimizer, pruner):
    first, *rest = optimizer.param_groups[0]["params"]
    optimizer.param_groups[0]["params"] = [first]
    optimizer.add_param_group({"params": rest, "lr": 0.01})


@change
def rate_changed(model, optimizer, pruner):
    optimizer.param_groups[0]["lr"] = torch.tensor(0.01)


@change
def optimizer_exchanged(model, optimizer, pruner):
    return torch.optim.SGD(model.parameters(), lr=0.1)


@change
def optimizer_exchanged_and_attached(model, optimizer, pruner):
    pruner.attach(new := torch.optim.AdamW(model.parameters()))
    return new


@change
def hooks_cleared(model, optimizer, pruner):
    optimizer._optimizer_step_post_hooks.clear()
    optimizer._optimizer_step_pre_hooks.clear()


@change
def detached(model, optimizer, pruner):
    pruner.detach()


@change
def gone_back(model, optimizer, pruner):
    pruner.load_state_dict({**pruner.state_dict(), "step": 1})


METHODS = [fadeout.SelectiveWeightDecay, GradualMagnitudePruning, RigL, ACDC]


def outcome(name: str, method: type) -> tuple[str, list[str]]:
    """What is raised, and what is warned of; where neither, the target must be met where the model looks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pruner = method(model, optimizer, sparsity=0.75, steps=40)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            for step in range(40):
                if step == 2:
                    optimizer = CHANGES[name](model, optimizer, pruner) or optimizer
                optimizer.zero_grad()
                x = torch.randn(8, 6, dtype=next(model.parameters()).dtype)
                model(x).float().square().mean().backward()
                optimizer.step()
            masks = pruner.remove()
        except ValueError as error:
            return str(error), []
    if not said:
        weights = {n: p for n, p in model.named_parameters() if n in masks}
        assert weights.keys() == masks.keys()
        assert masks.total - masks.left == round(0.75 * masks.total)
        assert all(not weights[n][~mask].any() for n, mask in masks.items())
    return "", [str(one.message) for one in said]


@pytest.mark.parametrize("name", list(CHANGES))
def test_a_change(name):
    for method in METHODS if name in ("new_head", "group_taken_away") else METHODS[:1]:
        raised, said = outcome(name, method)
        where = f"{name}, {method.__name__}: {raised or said}"
        assert not raised or any(word in raised for word in ("weight", "optimizer", "mask")), where


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS[1:], ids=lambda method: method.__name__)
@pytest.mark.parametrize("name", list(CHANGES))
def test_a_change_under_other_methods(name, method):
    outcome(name, method)


def test_there_are_enough():
    assert len(CHANGES) >= 30
