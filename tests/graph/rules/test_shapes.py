"""Operators that move channels about: what goes and what stays, worked out by hand."""

import pytest
import torch
import torch.nn.functional as F
from support.helpers import ALL, Net, check, conv, kill, same_outputs
from support.small_networks import IMAGES
from torch import nn

import fadeout
from fadeout import models


def test_flattened_channels_take_a_block_of_columns():
    model = nn.Sequential(conv(3, 4), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(16, 2))
    kill(model[0], channels=[1])
    check(model, {"0": [0, 2, 3], "3": (ALL, [0, 1, 2, 3, *range(8, 16)])})


def test_a_number_of_channels_in_a_view_is_rewritten():
    model = Net(
        lambda m, x: m.b(F.max_pool2d(m.a(x), 3).view(-1, 4 * 2 * 2)), a=conv(3, 4), b=nn.Linear(16, 2)
    )
    kill(model.a, channels=[0])
    small = check(model, {"a": [1, 2, 3], "b": (ALL, list(range(4, 16)))})
    same_outputs(model, small, torch.randn(5, 3, 6, 6).double())  # a batch of another size


def test_sizes_of_another_value_in_a_view():
    """Squeeze and excitation, as it is usually written."""

    def forward(m, x):
        x = m.a(x)
        b, c, _, _ = x.size()
        gate = torch.sigmoid(m.up(F.relu(m.down(F.adaptive_avg_pool2d(x, 1).view(b, c))))).view(b, c, 1, 1)
        return m.b(x * gate.expand_as(x))

    model = Net(forward, a=conv(3, 4), down=nn.Linear(4, 3), up=nn.Linear(3, 4), b=conv(4, 2))
    kill(model.a, channels=[1])
    check(model, {"a": [0, 2, 3], "down": (ALL, [0, 2, 3]), "up": [0, 2, 3], "b": (ALL, [0, 2, 3])})
    kill(model.up, channels=[0])  # half of channel 0 is not nothing
    check(model, {"a": [0, 2, 3], "down": (ALL, [0, 2, 3]), "up": [0, 2, 3], "b": (ALL, [0, 2, 3])})


def test_heads_that_unflatten_counts_stay():
    model = nn.Sequential(conv(3, 8), nn.Unflatten(1, (4, 2)), nn.Flatten(1, 2), conv(8, 2))
    kill(model[0], channels=[0, 1])
    with pytest.warns(UserWarning, match="2 of '0' stay, because they are not followed through '1'"):
        check(model, {})
    model[1] = nn.Unflatten(1, (-1, 2))
    check(model, {"0": [2, 3, 4, 5, 6, 7], "3": (ALL, [2, 3, 4, 5, 6, 7])})


def test_concatenated_channels():
    model = Net(lambda m, x: m.c(torch.cat([m.a(x), m.b(x)], 1)), a=conv(3, 3), b=conv(3, 4), c=conv(7, 2))
    kill(model.a, channels=[1])
    kill(model.b, channels=[0, 3])
    check(model, {"a": [0, 2], "b": [1, 2], "c": (ALL, [0, 2, 4, 5])})


def test_chunks():
    """Gated linear units: a dead half of a pair takes the other half with it."""

    def forward(m, x):
        values, gates = m.a(x).chunk(2, dim=1)
        return m.b(values * torch.sigmoid(gates))

    model = Net(forward, a=conv(3, 8), b=conv(4, 2))
    kill(model.a, channels=[0])
    check(model, {"a": [1, 2, 3, 5, 6, 7], "b": (ALL, [1, 2, 3])})


@pytest.mark.parametrize("sizes", [[1, 4], (1, 4)])
def test_splits(sizes):
    def forward(m, x):
        first, second = torch.split(m.a(x), sizes, 1)
        return m.b(first) + m.c(second)

    model = Net(forward, a=conv(3, 5), b=conv(1, 2), c=conv(4, 2))
    kill(model.a, channels=[1, 4])
    check(model, {"a": [0, 2, 3], "c": (ALL, [1, 2])})


def test_pixel_shuffle_takes_channels_by_fours():
    model = nn.Sequential(conv(3, 8), nn.PixelShuffle(2), conv(2, 2), nn.PixelUnshuffle(2), conv(8, 2))
    kill(model[0], channels=[0, 1, 2])
    check(model, {})
    kill(model[0], channels=[3])
    kill(model[2], channels=[1])
    check(model, {"0": [4, 5, 6, 7], "2": ([0], [1]), "4": (ALL, [0, 1, 2, 3])})


def test_attention_loses_whole_heads_and_the_perceptron_units():
    model = models.vit(num_classes=3, image_size=8, dim=12, depth=1, heads=3, mlp_ratio=1)
    block = model.blocks[0]
    kill(block.attention.v, channels=range(4, 8))  # the second head
    kill(block.attention.q, channels=[0, 1])  # but not two dimensions of the first
    kill(block.fc1, channels=[0, 5])
    heads, units = [0, 1, 2, 3, 8, 9, 10, 11], [1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
    kept = {f"blocks.0.attention.{name}": heads for name in "qkv"}
    kept |= {"blocks.0.attention.proj": (ALL, heads), "blocks.0.fc1": units, "blocks.0.fc2": (ALL, units)}
    small = check(model, kept, (2, 3, 8, 8))
    assert small.blocks[0].attention.heads == 2


def test_a_norm_between_reshapes_as_another_value():
    """A linear layer with a batch-norm, as LeViT has it."""

    def forward(m, x):
        x = m.a(x)
        return m.b(m.n(x.flatten(0, 1)).reshape_as(x))

    model = Net(forward, a=nn.Linear(3, 4), n=nn.BatchNorm1d(4), b=nn.Linear(4, 2))
    kill(model.n, channels=[2])
    check(model, {"a": [0, 1, 3], "n": [0, 1, 3], "b": (ALL, [0, 1, 3])}, (2, 5, 3))


@pytest.mark.parametrize("keeps_forward", [False, True])
def test_channels_times_other_sizes(keeps_forward):
    """As recurrent networks read columns of images, and as flattening is often written."""

    def flat(m, x):
        h = m.a(x).relu()
        m.sum = x.sum() if keeps_forward else None  # which a graph could not keep
        b, c, rows, columns = h.shape
        return m.b(h.view(b, c * rows * columns))

    def by_column(m, x):
        h = m.a(x).relu()
        b, c, rows, columns = h.shape
        m.sum = x.sum() if keeps_forward else None
        return m.b(h.permute(0, 3, 1, 2).reshape(b, columns, rows * c))

    rows, columns = IMAGES.shape[2:]
    for forward, each in ((flat, rows * columns), (by_column, rows)):
        model = Net(forward, a=conv(3, 4), b=nn.Linear(4 * each, 2)).double()
        kill(model.a, channels=[1, 2])
        small = fadeout.compact(model, IMAGES)
        assert small.b.in_features == 2 * each
        assert type(small) is Net
        same_outputs(model, small, IMAGES)
