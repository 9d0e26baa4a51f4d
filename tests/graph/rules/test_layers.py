"""Layers with weights: what goes and what stays, worked out by hand."""

import pytest
import torch
import torch.nn.functional as F
from support.helpers import ALL, FEATURES, check, conv, kill
from torch import nn

import fadeout
from fadeout import Channels
from fadeout.methods.magnitude import one_shot

# what stays although it is zero is what is tested here: the warning has tests of its own
pytestmark = pytest.mark.filterwarnings("ignore:compact.. keeps")


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolutions_of_every_rank(rank):
    convolution, norm = getattr(nn, f"Conv{rank}d"), getattr(nn, f"BatchNorm{rank}d")
    transposed = getattr(nn, f"ConvTranspose{rank}d")
    model = nn.Sequential(
        convolution(3, 4, 2), norm(4), nn.ReLU(), transposed(4, 5, 2), norm(5), convolution(5, 2, 1)
    )
    kill(model[1], channels=[1])
    kill(model[4], channels=[0, 4])
    check(
        model,
        {"0": [0, 2, 3], "1": [0, 2, 3], "3": ([0, 2, 3], [1, 2, 3]), "4": [1, 2, 3], "5": (ALL, [1, 2, 3])},
        (2, 3, *[4] * rank),
    )


def test_dead_rows_of_linear_layers():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    kill(model[0], channels=[1])
    kill(model[2], channels=[2, 3])
    check(model, {"0": [0, 2, 3], "2": ([0, 1], [0, 2, 3]), "4": (ALL, [0, 1])}, FEATURES)


def test_a_channel_that_nobody_reads_goes():
    model = nn.Sequential(conv(3, 4), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 2, 3))
    with torch.no_grad():
        model[3].weight[:, 1] = 0
    check(model, {"0": [0, 2, 3], "1": [0, 2, 3], "3": (ALL, [0, 2, 3])})


def test_what_feeds_only_dead_channels_goes_too():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[2].weight[1:, 0] = 0  # only unit 0 reads unit 0
    kill(model[2], channels=[0])
    check(model, {"0": [1, 2, 3], "2": ([1, 2, 3], [1, 2, 3]), "4": (ALL, [1, 2, 3])}, FEATURES)


def test_the_bias_of_a_dead_filter_speaks_on():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    kill(model[0], channels=[0], shift=2.0)
    kill(model[0], channels=[3], shift=-2.0)  # nothing comes through the rectifier
    small = check(model, {"0": [1, 2], "2": (ALL, [1, 2])}, FEATURES)
    torch.testing.assert_close(small[2].bias, model[2].bias + 2 * model[2].weight[:, 0])


def test_a_constant_is_folded_into_the_next_bias():
    model = nn.Sequential(conv(3, 4), nn.Sigmoid(), conv(4, 2, 3))
    kill(model[0], channels=[0, 2])
    small = check(model, {"0": [1, 3], "2": (ALL, [1, 3])})
    half = 0.5 * model[2].weight[:, [0, 2]].sum((1, 2, 3))  # sigmoid(0) = 1/2
    torch.testing.assert_close(small[2].bias, model[2].bias + half)


def test_a_layer_without_bias_gets_one_for_a_constant():
    model = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2, bias=False))
    kill(model[0], channels=[0])
    small = check(model, {"0": [1, 2, 3], "2": (ALL, [1, 2, 3])}, FEATURES)
    torch.testing.assert_close(small[2].bias, 0.5 * model[2].weight[:, 0])


@pytest.mark.parametrize(
    ("arguments", "folded"),
    [
        ({"padding": 1}, False),
        ({"padding": "same"}, False),
        ({"padding": "valid"}, True),
        ({"padding": 1, "padding_mode": "reflect"}, True),
        ({"padding": 1, "padding_mode": "replicate"}, True),
        ({"padding": 1, "padding_mode": "circular"}, True),
        ({"stride": 2, "dilation": 2}, True),
    ],
)
def test_a_constant_is_kept_where_the_border_shows(arguments, folded):
    model = nn.Sequential(conv(3, 4), nn.Sigmoid(), conv(4, 2, 3, **arguments))
    kill(model[0], channels=[1])
    check(model, {"0": [0, 2, 3], "2": (ALL, [0, 2, 3])} if folded else {})


def test_a_transposed_convolution_makes_patterns_of_a_constant():
    model = nn.Sequential(conv(3, 4), nn.Sigmoid(), nn.ConvTranspose2d(4, 2, 2, stride=2))
    kill(model[0], channels=[1])
    check(model, {})
    model[1] = nn.Tanh()  # but not of zero
    check(model, {"0": [0, 2, 3], "2": ([0, 2, 3], ALL)})


def test_a_table_loses_empty_columns():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2))
    with torch.no_grad():
        model[0].weight[:, 2] = 0
    check(model, {"0": (ALL, [0, 1, 3]), "1": (ALL, [0, 1, 3])}, torch.tensor([[0, 4, 2]]))


def test_depthwise_filters_go_with_their_channel():
    model = nn.Sequential(
        *(conv(3, 4), nn.BatchNorm2d(4), nn.ReLU6()),
        *(conv(4, 4, 3, padding=1, groups=4, bias=False), nn.BatchNorm2d(4), nn.ReLU6(), conv(4, 2)),
    )
    kill(model[1], channels=[0])
    kill(model[4], channels=[0, 2])
    small = check(model, {"0": [1, 3], "1": [1, 3], "3": [1, 3], "4": [1, 3], "6": (ALL, [1, 3])})
    assert small[3].groups == 2


def test_groups_keep_equal_numbers():
    model = nn.Sequential(conv(3, 6), nn.ReLU(), conv(6, 6, groups=2, bias=False), nn.ReLU(), conv(6, 2))
    kill(model[0], channels=[0, 3, 4])  # one of the first group, two of the second
    kill(model[2], channels=[2, 5])
    small = check(model, {"0": [1, 2, 3, 5], "2": None, "4": (ALL, [0, 1, 3, 4])})
    expected = torch.cat([model[2].weight[[0, 1]][:, [1, 2]], model[2].weight[[3, 4]][:, [0, 2]]])
    assert torch.equal(small[2].weight, expected)
    assert small[2].groups == 2


def test_whole_groups_go():
    model = nn.Sequential(conv(3, 6), nn.ReLU(), conv(6, 6, groups=3, bias=False), nn.ReLU(), conv(6, 2))
    kill(model[2], channels=[2, 3])
    small = check(model, {"0": [0, 1, 4, 5], "2": [0, 1, 4, 5], "4": (ALL, [0, 1, 4, 5])})
    assert small[2].groups == 2


def test_images_without_a_batch():
    model = nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 2))
    kill(model[0], channels=[0])
    check(model, {"0": [1, 2, 3], "2": (ALL, [1, 2, 3])}, (3, 6, 6))


class Own(nn.Module):
    """A linear layer that is none of torch's; transposed, as ``Conv1D`` of transformers."""

    def __init__(self, inputs, outputs, transposed):
        super().__init__()
        self.nx, self.nf, self.transposed = inputs, outputs, transposed
        shape = (inputs, outputs) if transposed else (outputs, inputs)
        self.weight, self.bias = nn.Parameter(torch.randn(shape)), nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        if not self.transposed:
            return F.linear(x, self.weight, self.bias)
        size = (*x.shape[:-1], self.nf)
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(size)


@pytest.mark.parametrize("transposed", [False, True])
def test_linear_layers_of_others(transposed):
    model = nn.Sequential(Own(3, 6, transposed), nn.Tanh(), Own(6, 2, transposed))
    x = torch.randn(4, 5, 3)
    one_shot(model, 0.5, structure=Channels(x, by="norm"))
    small = fadeout.compact(model, x)
    assert (small[0].nx, small[0].nf, small[2].nx) == (3, 2, 2)  # four of six, of which each has six weights
    assert small[0].weight.shape == ((3, 2) if transposed else (2, 3))
    torch.testing.assert_close(small(x), model(x))


def test_filters_of_a_transposed_convolution_are_columns():
    model = nn.Sequential(nn.ConvTranspose2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 3))
    x = torch.randn(2, 3, 6, 6)
    masks = one_shot(model, 0.5, structure=Channels(x, by="norm"))
    kept = masks["0.weight"].any(0).flatten(1).any(1)
    assert torch.equal(kept, masks["0.bias"])
    small = fadeout.compact(model, x)
    assert small[0].out_channels == int(kept.sum()) <= 4
    torch.testing.assert_close(small(x), model(x), atol=1e-5, rtol=1e-4)
