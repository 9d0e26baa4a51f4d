"""Normalisations: what goes and what stays, worked out by hand."""

import pytest
import torch
from support.helpers import ALL, FEATURES, check, conv, kill
from torch import nn

# what stays although it is zero is what is tested here: the warning has tests of its own
pytestmark = pytest.mark.filterwarnings("ignore:compact.. keeps")


def test_a_norm_without_scale_and_shift_takes_its_filter_and_its_readers():
    model = nn.Sequential(conv(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), conv(6, 2, 3, padding=1))
    kill(model[1], channels=[0, 2, 5])
    small = check(model, {"0": [1, 3, 4], "1": [1, 3, 4], "3": (ALL, [1, 3, 4])})
    assert torch.equal(small[1].running_mean, model[1].running_mean[[1, 3, 4]])
    assert torch.equal(small[1].running_var, model[1].running_var[[1, 3, 4]])
    sizes = small[0].out_channels, small[1].num_features, small[3].in_channels, small[3].out_channels
    assert sizes == (3, 3, 3, 2)


def test_running_statistics_are_constants_for_inference_only():
    model = nn.Sequential(conv(3, 4), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 2))
    kill(model[0], channels=[1], shift=3.0)
    with torch.no_grad():
        model[1].bias.fill_(5)  # not to be stopped by the rectifier
    check(model, {})
    small = check(model, {"0": None, "1": None, "3": (ALL, [0, 2, 3])}, for_inference=True)
    assert small[0].out_channels == 3  # with the norm in it


def test_a_norm_without_scale_is_its_shift():
    model = nn.Sequential(conv(3, 4), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 2))
    kill(model[1], channels=[2], shift=0.7)
    small = check(model, {"0": [0, 1, 3], "1": [0, 1, 3], "3": (ALL, [0, 1, 3])})
    torch.testing.assert_close(small[3].bias, model[3].bias + 0.7 * model[3].weight[:, 2, 0, 0])


def test_norms_without_scales_keep_all():
    model = nn.Sequential(conv(3, 4), nn.BatchNorm2d(4, affine=False), conv(4, 2))
    kill(model[0], channels=[1], shift=1.0)
    check(model, {})


def test_group_norm_lets_only_whole_groups_go():
    model = nn.Sequential(conv(3, 6), nn.GroupNorm(3, 6), nn.ReLU(), conv(6, 2))
    kill(model[1], channels=[0, 2])
    check(model, {})
    kill(model[1], channels=[3])
    left = [0, 1, 4, 5]
    small = check(model, {"0": left, "1": left, "3": (ALL, left)})
    assert (small[1].num_groups, small[1].num_channels) == (2, 4)


@pytest.mark.parametrize(
    "norm", [nn.LayerNorm(4), nn.RMSNorm(4), nn.LayerNorm((4,), elementwise_affine=False)]
)
def test_layer_norm_keeps_all(norm):
    model = nn.Sequential(nn.Linear(3, 4), norm, nn.Linear(4, 2))
    kill(model[0], channels=[0, 1])
    check(model, {}, FEATURES)
