"""What is armed is called when a network is looked at, and leaves nothing behind."""

import pytest
import torch
from torch import nn

from fadeout.torch_bridge.tripwire import Tripwire

LOOKS = {
    "forward": lambda model: model(torch.zeros(1, 2)),
    "state_dict": lambda model: model.state_dict(),
    "load_state_dict": lambda model: model.load_state_dict(nn.Linear(2, 2).state_dict()),
    "from outside": lambda model: nn.Sequential(model).state_dict(),
}


@pytest.mark.parametrize("look", LOOKS)
def test_it_is_called_while_armed(look):
    model, calls = nn.Linear(2, 2), []
    wire = Tripwire(model, lambda: calls.append(look))
    LOOKS[look](model)
    wire.arm()
    wire.arm()
    assert not calls
    LOOKS[look](model)
    assert calls == [look]
    wire.disarm()
    wire.disarm()
    LOOKS[look](model)
    assert calls == [look]
    assert not model._forward_pre_hooks
