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


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_script_takes_no_hooks_and_is_let_be():
    model = torch.jit.script(nn.Linear(2, 2))
    wire = Tripwire(model, lambda: None)
    wire.arm()
    model.state_dict()
    wire.disarm()
