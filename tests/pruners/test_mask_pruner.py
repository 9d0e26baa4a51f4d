"""A method of one's own that holds weights at zero, written with public names alone."""

import copy

import pytest
import torch
from torch import nn

from fadeout import methods
from fadeout.pruners import MaskPruner

STEPS = 10


class Late(MaskPruner):
    """The lowest weights go at half of the training; from then on their gradients are zero too."""

    acts_early = True

    def join(self, optimizer, wants_loss):
        self.zero_gradients(optimizer)

    def end(self):
        if self.steps_taken == self.steps // 2:
            self.held = self.select(self.final_sparsity)
        self.zero_held()

    def share(self):
        return float(self.steps_taken > self.steps // 2)


def build(state=None):
    torch.manual_seed(0)
    model = nn.Linear(10, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pruner = Late(model, optimizer, sparsity=lambda progress: 0.9, steps=STEPS)
    if state is not None:
        for part, saved in zip((model, optimizer, pruner), state, strict=True):
            part.load_state_dict(saved)
    return model, optimizer, pruner


def train(model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        images = torch.randn(8, 10, generator=torch.Generator().manual_seed(step))
        model(images).square().mean().backward()
        optimizer.step()


def test_weights_are_held_from_the_step_on_in_which_they_are_chosen():
    model, optimizer, pruner = build()
    train(model, optimizer, range(5))
    assert (pruner.steps_taken, pruner.share(), len(pruner.held)) == (5, 0.0, 0)
    assert model.weight.count_nonzero() == 100
    train(model, optimizer, range(5, 6))
    assert (pruner.steps_taken, pruner.share(), len(pruner.held)) == (6, 1.0, 1)
    masks = pruner.masks()
    train(model, optimizer, range(6, STEPS))
    assert torch.equal(model.weight != 0, masks["weight"])
    assert masks.left == 10


def test_it_resumes_bit_for_bit_before_and_after_the_choice():
    model, optimizer, _ = build()
    train(model, optimizer, range(STEPS))
    for stop in (3, 8):
        first = build()
        train(*first[:2], range(stop))
        again = build(copy.deepcopy([part.state_dict() for part in first]))
        train(*again[:2], range(stop, STEPS))
        assert torch.equal(again[0].weight, model.weight)


@pytest.mark.parametrize(
    "method", [Late, methods.GradualMagnitudePruning, methods.ACDC, methods.RigL], ids=lambda m: m.__name__
)
def test_weights_are_held_where_optimizers_step_in_turns(method):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10))
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9) for layer in model]
    pruner = method(model, optimizers, sparsity=0.9, steps=STEPS)
    for optimizer in optimizers * (STEPS - 1):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()
        held = pruner.held  # perhaps others than before the step
        assert all((model.get_parameter(name)[mask] == 0).all() for name, mask in held.items())
    assert held
