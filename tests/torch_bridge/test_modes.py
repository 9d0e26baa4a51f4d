"""Modes for a while: each module gets its own back, whatever happens meanwhile."""

import pytest
import torch
from torch import nn

from fadeout.torch_bridge.modes import in_mode, still


@pytest.mark.parametrize("training", [True, False])
def test_every_module_gets_its_own_mode_back(training):
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2)))
    model[1].eval()
    with in_mode(model, training):
        assert {module.training for module in model.modules()} == {training}
    assert [module.training for module in model.modules()] == [True, True, False, False]
    with pytest.raises(ZeroDivisionError), in_mode(model, training):
        _ = 1 / 0
    assert [module.training for module in model.modules()] == [True, True, False, False]


def test_still_takes_no_gradients():
    model = nn.Linear(2, 2)
    with still(model):
        assert not model.training
        assert not model(torch.ones(1, 2)).requires_grad
    assert model.training
    assert model(torch.ones(1, 2)).requires_grad
