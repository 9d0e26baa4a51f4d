"""Hidden units of recurrent networks go, in all layers and directions at once."""

import pytest
import torch
from support.helpers import size
from torch import nn

import fadeout
from fadeout import Channels
from fadeout.methods.magnitude import one_shot


class Reader(nn.Module):
    """A layer before and behind, so that inputs and outputs can go."""

    def __init__(self, kind, reads, **arguments):
        super().__init__()
        self.before, self.kind = nn.Linear(3, 4), kind(4, 8, batch_first=True, **arguments)
        self.head, self.reads = nn.LazyLinear(2), reads

    def forward(self, x):
        return self.head(self.reads(self.kind(self.before(x).relu())))


def last_output(found):
    return found[0][:, -1]


def last_state(found):
    return found[1][-1]


def last_cell(found):
    return found[1][1][-1]


CASES = {
    "rnn": (nn.RNN, last_output, {}),
    "gru": (nn.GRU, last_state, {}),
    "lstm": (nn.LSTM, last_output, {"num_layers": 2}),
    "cell": (nn.LSTM, last_cell, {"bias": False}),
    "both ways": (nn.GRU, last_output, {"num_layers": 2, "bidirectional": True}),
}


@pytest.fixture(params=CASES)
def model(request):
    torch.manual_seed(0)
    kind, reads, arguments = CASES[request.param]
    model = Reader(kind, reads, **arguments).eval()
    model(torch.zeros(1, 2, 3))
    return model


def test_half_of_it_goes(model):
    x = torch.randn(2, 5, 3)
    one_shot(model, 0.5, structure=Channels(x, by="norm"))
    small = fadeout.compact(model, x)
    assert size(small) <= size(model) / 2
    assert small.kind.hidden_size < 8
    for each in (x, torch.randn(3, 7, 3)):
        torch.testing.assert_close(small(each), model(each))


def test_it_counts_what_is_left(model):
    x = torch.randn(2, 5, 3)
    masks = one_shot(model, 0.3, structure=Channels(x, by="norm", min_channels=2))
    assert masks.keys() >= {"kind.weight_ih_l0", "kind.weight_hh_l0"}
    removed = 1 - size(fadeout.compact(model, x)) / size(model)
    assert 0.3 <= removed < 0.45


def test_with_a_state_to_begin_with_it_stays_whole():
    class Begun(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.head = nn.GRU(3, 4), nn.Linear(4, 2)

        def forward(self, x, state):
            return self.head(self.gru(x, state)[0])

    model = Begun()
    with torch.no_grad():
        for parameter in model.gru.parameters():
            parameter[-1] = 0  # a unit that would stay where it begins
    given = torch.randn(5, 2, 3), torch.randn(1, 2, 4)
    assert size(fadeout.compact(model, given)) == size(model)
