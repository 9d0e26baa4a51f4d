"""Optimizers as users pass them, and what they keep beside the weights."""

import pytest
import torch
from torch import nn

from fadeout import SelectiveWeightDecay
from fadeout.torch_bridge.optimizers import as_list, bases, is_schedule_free, set_to_zero, unwrap_optimizer


def sgd(*parameters):
    return torch.optim.SGD(parameters or [nn.Parameter(torch.ones(2))], lr=0.1)


class Wrapped(torch.optim.SGD):
    """As Accelerate's, which is an optimizer itself and hands every call on."""

    def __init__(self, optimizer):
        self.optimizer = optimizer


Wrapped.__module__ = "accelerate.optimizer"


class Around:
    """As schedule-free's wrapper, which is no optimizer."""

    def __init__(self, base):
        self.base = base


class WithoutHooks(torch.optim.Optimizer):
    """As timm's Lookahead was, which does not call ``super().__init__()``."""

    def __init__(self, base):
        self.base, self.param_groups, self.state = base, base.param_groups, base.state


def test_one_or_several_are_a_list_with_each_once():
    one, other = sgd(), sgd()
    assert as_list(one) == [one]
    assert as_list([one, other, one]) == [one, other]
    assert as_list((other, Wrapped(other))) == [other]


def test_wrappers_of_trainers_are_looked_into():
    inside = sgd()
    assert unwrap_optimizer(Wrapped(Wrapped(inside))) is inside
    assert unwrap_optimizer(Wrapped(None)).optimizer is None  # there is nothing inside
    around = Around(inside)
    assert unwrap_optimizer(around) is around


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], r"optimizer is a torch.optim.Optimizer, or a list of them; got \[\]"),
        ("sgd", "got 'sgd'"),
        ([sgd(), 3], "got"),
        (Around(sgd()), "ScheduleFreeWrapper.*has no step hooks: take schedulefree.AdamWScheduleFree"),
        (WithoutHooks(sgd()), "WithoutHooks has no step hooks, as it does not call"),
    ],
)
def test_what_is_no_optimizer_or_has_no_hooks(given, words):
    with pytest.raises(ValueError, match=words):
        as_list(given)


def test_an_optimizer_that_can_have_no_hooks_is_refused(bare):
    model = bare(w=[[1.0]])
    optimizer = WithoutHooks(torch.optim.SGD(model.parameters()))
    with pytest.raises(ValueError, match=r"WithoutHooks has no step hooks.*pass the optimizer that it wraps"):
        SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=1)


def test_a_schedule_free_group_knows_its_mode():
    assert is_schedule_free({"train_mode": False, "lr": 0.1})
    assert not is_schedule_free({"lr": 0.1})


def test_zeros_stay_zeros_in_what_a_schedule_free_optimizer_steps():
    weight, other = nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.ones(2))
    optimizer = sgd(weight, other)
    optimizer.state[weight]["z"] = torch.tensor([3.0, 4.0])
    optimizer.state[other]["z"] = torch.zeros(3)  # of another shape: something else
    assert [z.tolist() for z in bases([optimizer], weight)] == [[3.0, 4.0]]
    assert bases([optimizer], other) == bases([sgd()], weight) == []
    set_to_zero(weight, torch.tensor([True, False]), [optimizer])
    assert weight.tolist() == [0.0, 2.0]
    assert optimizer.state[weight]["z"].tolist() == [0.0, 4.0]
    assert weight.requires_grad
