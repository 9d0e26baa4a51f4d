"""MobileNetV2: its published size, where it halves the image, its widths, its trace."""

import pytest
import torch
from support.models import check_training_and_trace, on_meta, size, spatial

from fadeout import models


def test_it_has_its_published_size():
    assert size(on_meta("mobilenetv2", 1000, stem="imagenet")) == 3_504_872
    # The stems differ in stride alone: what changes here is the classifier.
    assert size(on_meta("mobilenetv2")) == 3_504_872 - (1280 + 1) * 990


def test_forward_backward_and_trace():
    model, x = models.mobilenetv2(num_classes=7, width_mult=0.1), torch.randn(2, 3, 16, 16)
    assert model(x).shape == (2, 7)
    check_training_and_trace(model, [x], [x[:1]])


def test_the_imagenet_stem_traces_too():
    model = models.mobilenetv2(stem="imagenet", width_mult=0.1).eval()
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(torch.fx.symbolic_trace(model)(x), model(x))


def test_stems():
    assert spatial(on_meta("mobilenetv2").features, 32) == (4, 4)
    assert spatial(on_meta("mobilenetv2", stem="imagenet").features, 224) == (7, 7)


def test_usual_names_so_that_published_weights_load():
    names = on_meta("mobilenetv2").state_dict()
    assert {"features.0.0.weight", "features.1.conv.1.weight", "features.18.1.bias"} <= set(names)
    assert {"features.17.conv.3.running_mean", "classifier.1.weight"} <= set(names)


def test_widths_are_multiples_of_eight():
    model = on_meta("mobilenetv2", width_mult=0.35)
    narrow = [m.conv[-1].num_features for m in model.features if hasattr(m, "residual")]
    assert sorted(set(narrow)) == [8, 16, 24, 32, 56, 112]
    assert model.classifier[1].in_features == 1280


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stem": ""}, "got ''"),
        ({"width_mult": 0}, "width_mult is a number above 0, got 0"),
        ({"width_mult": float("nan")}, "width_mult is a number above 0, got nan"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        models.mobilenetv2(**arguments)
