"""Batch-norms become part of the layer before them, for inference, and outputs are the same."""

import pytest
import torch
import torch.nn.functional as F
from support.helpers import Net, conv, kill, same_outputs
from support.small_networks import IMAGES, Residual
from torch import nn

import fadeout
from fadeout.compaction.plan import plans_of

FEATURES = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).double()
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@torch.no_grad()
def lived(model: nn.Module) -> nn.Module:
    """With statistics, scales and shifts as a training leaves them."""
    for module in model.modules():
        if isinstance(module, NORMS):
            for tensor in (module.weight, module.bias, module.running_mean):
                if tensor is not None:
                    tensor.normal_()
            if module.running_var is not None:
                module.running_var.uniform_(0.5, 2)
    return model.double()


def norms(model: nn.Module) -> int:
    return sum(isinstance(module, NORMS) for module in model.modules())


LAYERS = {
    "linear": (nn.Linear(3, 4), nn.BatchNorm1d(4), FEATURES),
    "linear without bias": (nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), FEATURES),
    "1d": (nn.Conv1d(3, 4, 2), nn.BatchNorm1d(4), FEATURES[:, :, None].repeat(1, 1, 5)),
    "2d": (conv(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), IMAGES),
    "3d": (nn.Conv3d(3, 4, 2), nn.BatchNorm3d(4), IMAGES[:, :, None].repeat(1, 1, 3, 1, 1)),
    "depthwise": (conv(3, 6, 3, groups=3), nn.BatchNorm2d(6), IMAGES),
    "transposed": (nn.ConvTranspose2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), IMAGES),
    "without scales": (conv(3, 4), nn.BatchNorm2d(4, affine=False), IMAGES),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_layers(kind):
    layer, norm, example = LAYERS[kind]
    model = lived(nn.Sequential(layer, norm, nn.ReLU()))
    small = fadeout.compact(model, example, for_inference=True)
    assert norms(small) == 0
    assert type(small[1]) is nn.Identity
    same_outputs(model, small, example)
    assert norms(fadeout.compact(model, example)) == 1  # it may be trained further
    assert norms(model) == 1


def shared(m, x):
    return m.norm(m.a(x)) + m.norm(m.b(x))


class Activated(nn.BatchNorm2d):
    """With what follows inside, as timm's."""

    def __init__(self, channels):
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.SiLU(inplace=True)

    def forward(self, input):
        return self.act(self.drop(super().forward(input)))


class Doubled(Activated):
    def forward(self, input):
        return 2 * super().forward(input)


def test_a_norm_with_an_activation_inside(tmp_path):
    def build():
        return nn.Sequential(conv(3, 4, 3), Activated(4), conv(4, 2)).double()

    model = lived(build())
    small = fadeout.compact(model, IMAGES, for_inference=True)
    assert [type(layer) for layer in small[1]] == [nn.Identity, nn.SiLU]
    same_outputs(model, small, IMAGES)
    fadeout.save(small, tmp_path / "small")
    same_outputs(small, fadeout.load(tmp_path / "small", build), IMAGES)


UNFOLDED = {
    "more than its children": lambda: nn.Sequential(conv(3, 4), Doubled(4)),
    "read by others too": lambda: Net(
        lambda m, x: m.norm(y := m.a(x)) + y, a=conv(3, 4), norm=nn.BatchNorm2d(4)
    ),
    "behind an activation": lambda: nn.Sequential(conv(3, 4), nn.ReLU(), nn.BatchNorm2d(4)),
    "used twice": lambda: Net(shared, a=conv(3, 4), b=conv(3, 4), norm=nn.BatchNorm2d(4)),
    "without statistics": lambda: nn.Sequential(conv(3, 4), nn.BatchNorm2d(4, track_running_stats=False)),
    "groups of a transposed one": lambda: nn.Sequential(
        conv(3, 4), nn.ConvTranspose2d(4, 4, 3, groups=2), nn.BatchNorm2d(4)
    ),
    "first": lambda: nn.Sequential(nn.BatchNorm2d(3), conv(3, 4)),
    "another axis": lambda: Net(
        lambda m, x: m.norm(m.a(x.mean(3))), a=nn.Linear(6, 4), norm=nn.BatchNorm1d(3)
    ),
}


@pytest.mark.parametrize("kind", UNFOLDED)
def test_what_cannot_be_folded_stays(kind):
    model = lived(UNFOLDED[kind]())
    small = fadeout.compact(model, IMAGES, for_inference=True)
    assert norms(small) == norms(model) == 1
    same_outputs(model, small, IMAGES)


def test_what_a_hook_sees_stays():
    model = lived(nn.Sequential(conv(3, 4), nn.BatchNorm2d(4)))
    seen = []
    model[1].register_forward_hook(lambda module, args, output: seen.append(output))
    assert norms(fadeout.compact(model, IMAGES, for_inference=True)) == 1


def test_with_an_optimizer_training_goes_on():
    model = lived(nn.Sequential(conv(3, 4), nn.BatchNorm2d(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    small, _ = fadeout.compact(model, IMAGES, for_inference=True, optimizer=optimizer)
    assert norms(small) == 1


def build() -> nn.Module:
    return Residual().double()


def test_beside_gathers_saved_and_loaded(tmp_path):
    """The forward is rewritten, and the file says what was folded."""
    model = lived(build())
    kill(model.norm, channels=[0, 3])
    kill(model.b, channels=[1, 3])
    small = fadeout.compact(model, IMAGES, for_inference=True).eval()
    assert norms(small) == 0
    assert plans_of(small)[0].folded == {"a": "norm"}
    same_outputs(model, small, IMAGES)
    fadeout.save(small, tmp_path / "small")
    again = fadeout.load(tmp_path / "small", build).eval()
    assert norms(again) == 0
    same_outputs(small, again, IMAGES)


def test_nothing_but_norms_to_fold_is_saved_and_loaded(tmp_path):
    model = lived(build())
    small = fadeout.compact(model, IMAGES, for_inference=True)
    fadeout.save(small, tmp_path / "small")
    same_outputs(model, fadeout.load(tmp_path / "small", build), IMAGES)


def test_low_precision_is_folded_in_float64():
    model = lived(nn.Sequential(conv(3, 4, bias=False), nn.BatchNorm2d(4)))
    exact = fadeout.compact(model, IMAGES, for_inference=True)
    rounded = fadeout.compact(model.float(), IMAGES.float(), for_inference=True)
    assert rounded[0].weight.dtype == torch.float32
    torch.testing.assert_close(rounded[0].weight.double(), exact[0].weight, rtol=1e-6, atol=1e-6)


def test_a_network_of_the_library():
    torch.manual_seed(0)
    model = lived(fadeout.models.resnet20(width=4, post_norm=False))
    small = fadeout.compact(model, IMAGES, for_inference=True)
    assert norms(small) == 0
    same_outputs(model, small, IMAGES)
    assert F.cross_entropy(small.eval()(IMAGES), torch.tensor([0, 1])).isfinite()
