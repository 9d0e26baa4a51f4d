"""Zeros that stay are counted, with the reason and the way out, unless nothing could be done about them."""

import pytest
import torch
import torch.nn.functional as F
from support.helpers import Net, conv, kill, same_outputs, shapes, size
from support.small_networks import IMAGES, chain, residual
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import fadeout


def normed() -> nn.Sequential:
    """A batch-norm between two convolutions, with statistics of its own."""
    model = nn.Sequential(conv(3, 4), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 2)).double()
    nn.init.normal_(model[1].running_mean)
    nn.init.normal_(model[1].bias)
    return model


def warned(model: nn.Module, **options: bool) -> tuple[nn.Module, str]:
    with pytest.warns(UserWarning, match=r"compact\(\) keeps") as caught:
        small = fadeout.compact(model, IMAGES, **options)
    assert caught[0].filename == __file__  # the user's line
    same_outputs(model, small, IMAGES)
    return small, str(caught[0].message)


def test_filters_zeroed_in_front_of_a_batch_norm():
    """Zero, and yet silent: in training the batch-norm's statistics still move."""
    model = normed()
    prune.remove(prune.ln_structured(model[0], "weight", 0.5, n=2, dim=0), "weight")
    small, message = warned(model)
    assert size(small) == size(model)
    left = 2 * (3 + 1) + 2 * (2 + 1)  # the batch-norm is folded
    assert message == (
        "compact() keeps 2 channels whose weights are all zero: 2 of '0' stay, because they may only go from "
        f"a network that is trained no more: pass for_inference=True ({left} parameters are left then, in "
        f"place of {size(model)})"
    )
    small = fadeout.compact(model, IMAGES, for_inference=True)  # and nothing is said any more
    assert size(small) == left
    same_outputs(model, small, IMAGES)


def test_masks_of_torch_that_are_still_active():
    model = normed()
    prune.ln_structured(model[0], "weight", 0.5, n=2, dim=0)
    small, message = warned(model, for_inference=True)
    assert size(small) == size(model)
    assert "2 of '0' stay, because a mask of torch.nn.utils.prune" in message
    assert message.endswith("call torch.nn.utils.prune.remove(module, 'weight') first")


def test_a_mask_on_the_layer_behind():
    model = nn.Sequential(conv(3, 4), conv(4, 2)).double()
    kill(model[0], channels=[1])
    prune.identity(model[1], "weight")
    assert (
        "1 of '0' stay, because a mask of torch.nn.utils.prune computes the weight of '1'" in warned(model)[1]
    )


def test_parametrized_weights():
    model = nn.Sequential(conv(3, 4), conv(4, 2)).double()
    kill(model[0], channels=[1])
    parametrizations.spectral_norm(model[0])
    message = warned(model)[1]
    assert "SpectralNorm computes their weight: call torch.nn.utils.parametrize.remove_param" in message


class Twice(nn.Conv2d):
    """A layer that does something else than its parent."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight - self.weight.mean()) + 1


def test_a_derived_layer_without_a_rule():
    model = nn.Sequential(conv(3, 4), Twice(4, 4, 1, bias=False), nn.ReLU(), conv(4, 2)).double()
    kill(model[0], channels=[0, 1])
    kill(model[1], channels=[3])
    message = warned(model)[1]
    assert message == (
        "compact() keeps 3 channels whose weights are all zero: "
        "2 of '0', 1 of '1' stay, because class Twice has no rule"
    )


def test_a_transposed_convolution():
    """Its filters lie along the second dimension."""
    layers = (nn.ConvTranspose2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 2))
    model = nn.Sequential(*layers).double()
    nn.init.ones_(model[1].bias)
    with torch.no_grad():
        model[0].weight[:, [0, 2]] = 0
    assert (
        "2 of '0' stay, because they may only go from a network that is trained no more" in warned(model)[1]
    )


def test_an_operator_without_a_rule():
    model = Net(lambda m, x: m.b(F.relu(m.a(x)).flip(1)), a=conv(3, 4), b=conv(4, 2)).double()
    kill(model.a, channels=[0, 1])
    assert "2 of 'a' stay, because the function flip() has no rule" in warned(model)[1]


def test_tied_weights():
    model = nn.Sequential(conv(3, 4), conv(4, 4), conv(4, 4)).double()
    model[2].weight = model[1].weight
    kill(model[0], channels=[2])
    assert "1 of '0' stay, because the weights of '1' are shared" in warned(model)[1]


def test_a_bias_that_shows_at_the_border():
    model = nn.Sequential(conv(3, 4, 3), nn.ReLU(), conv(4, 2, 3, padding=1)).double()
    kill(model[0], channels=[0, 1], shift=1.0)
    message = warned(model, for_inference=True)[1]
    assert "2 of '0' stay, because what they give is not zero" in message
    assert "the border that '2' pads with zeros: set their bias" in message
    kill(model[0], channels=[0, 1])
    assert shapes(fadeout.compact(model, IMAGES))["0.weight"][0] == 2


def test_many_layers_are_not_all_named():
    layers = [layer for _ in range(6) for layer in (conv(3, 3), nn.BatchNorm2d(3))]
    model = nn.Sequential(*layers, conv(3, 2)).double()
    for number in range(0, 12, 2):
        kill(model[number], channels=[0])
        nn.init.ones_(model[number + 1].bias)
    message = warned(model)[1]
    assert "keeps 6 channels" in message
    assert "1 of '6' and more of 2 other layers stay" in message


def emptied() -> nn.Sequential:
    model = nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 2)).double()
    kill(model[0], channels=range(4))
    return model


def outputs_of_zero() -> nn.Sequential:
    model = nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 2)).double()
    kill(model[2], channels=[1], shift=1.0)
    return model


def read_by_a_norm() -> nn.Module:
    forward = lambda m, x: m.b(m.norm(m.a(x.mean((2, 3)))))  # noqa: E731
    model = Net(forward, a=nn.Linear(3, 4), norm=nn.LayerNorm(4), b=nn.Linear(4, 2)).double()
    kill(model.a, channels=[1])
    return model


def in_groups() -> nn.Sequential:
    model = nn.Sequential(conv(3, 4), conv(4, 4, groups=2), conv(4, 2)).double()
    kill(model[0], channels=[0])
    return model


@pytest.mark.parametrize("build", [chain, residual, emptied, outputs_of_zero, read_by_a_norm, in_groups])
@pytest.mark.parametrize("options", [{}, {"for_inference": True}, {"couple": True}], ids=str)
def test_nothing_is_said_where_all_goes_or_nothing_can_be_done(build, options):
    fadeout.compact(build(), IMAGES, **options)  # warnings are errors


def test_the_weights_are_left_as_they_were():
    """A spectral norm changes with every look at its weight in training mode."""
    model = nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 2)).double()
    parametrizations.spectral_norm(model[0])
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    fadeout.compact(model, IMAGES)
    assert model[0].training
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def between(change) -> Net:
    """A layer that loses channels, something done to its output, a layer that reads it."""
    model = Net(lambda m, x: m.b(change(m, m.a(x).relu())), a=conv(3, 4), b=conv(4, 2)).double()
    kill(model.a, channels=[1, 2])
    return model


def test_a_forward_that_computes_with_the_number_of_channels():
    model = between(lambda m, h: h / h.shape[1])
    small, message = warned(model)
    assert size(small) == size(model)
    assert "2 of 'a' stay, because the forward computes with how many there are (div in" in message
    assert f"{__file__}:" in message
    assert "h / h.shape[1]" in message  # the line itself
    assert message.endswith("write the number itself there")
    assert size(fadeout.compact(between(lambda m, h: h / 4), IMAGES)) < size(model)


def test_a_forward_that_computes_with_other_sizes():
    """A mean that is written out; zero divided by a size is zero."""

    def forward(m, x):
        h = m.a(x).relu()
        return m.b(h.sum((2, 3)) / (h.shape[2] * h.shape[3]) / len(h))

    model = Net(forward, a=conv(3, 4), b=nn.Linear(4, 2)).double()
    kill(model.a, channels=[1, 2])
    small = fadeout.compact(model, IMAGES)
    assert shapes(small)["b.weight"] == (2, 2)
    same_outputs(model, small, IMAGES)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda m, h: torch.cat([h[:, :2], h[:, 2:]], 1),
            r"getitem() (through torch.split() they would be) in ",
        ),
        (lambda m, h: h * torch.linspace(1, 2, 4).view(-1, 1, 1), "mul() in "),
        (lambda m, h: F.pad(h, (0, 0, 0, 0, 1, -1)), "pad() in "),
    ],
)
def test_calls_that_channels_are_not_followed_through(change, reason):
    _, message = warned(between(change))
    assert f"they are not followed through {reason}{__file__}:" in message


def zeroed(m, h):
    h = h.clone()
    h[..., 0] = 0
    return h


@pytest.mark.parametrize(
    ("change", "name"), [(lambda m, h: h.sort(1)[0], "sort"), (lambda m, h: h.topk(4, 1).values, "topk")]
)
def test_functions_that_give_no_single_tensor(change, name):
    _, message = warned(between(change))
    assert message.endswith(f"because the function {name}() has no rule")
    with pytest.raises(ValueError, match=rf"Without a rule, and so with all their channels: {name}\(\)"):
        fadeout.Channels(IMAGES, by="norm").bind(between(change), None, lambda name, parameter: True)


def test_values_that_are_changed_in_place():
    _, message = warned(between(zeroed))
    assert f"because what clone() gives is changed in place in {__file__}:" in message
    with pytest.raises(ValueError, match=r"Without a rule, and so with all their channels: setitem\(\)"):
        fadeout.Channels(IMAGES, by="norm").bind(between(zeroed), None, lambda name, parameter: True)


def test_a_module_that_nothing_but_torch_calls():
    model = nn.Sequential(conv(3, 4), nn.Unflatten(1, (2, 2)), nn.Flatten(1, 2), conv(4, 2)).double()
    kill(model[0], channels=[0, 1])
    _, message = warned(model)
    assert message.endswith("2 of '0' stay, because they are not followed through '1'")


def test_the_number_of_all_elements_is_a_size():
    model = between(lambda m, h: h / h.numel())
    small, message = warned(model)
    assert size(small) == size(model)
    assert "the forward computes with how many there are" in message
