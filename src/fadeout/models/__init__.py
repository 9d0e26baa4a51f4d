"""Networks: plain modules built by plain functions, ignorant of pruning."""

from fadeout.models.densenet import densenet40
from fadeout.models.gcn import gcn
from fadeout.models.lenet import lenet5
from fadeout.models.mobilenet import mobilenetv2
from fadeout.models.resnet import (
    resnet18,
    resnet20,
    resnet32,
    resnet34,
    resnet44,
    resnet50,
    resnet56,
    resnet101,
    resnet110,
    resnet152,
)
from fadeout.models.small import smallcnn
from fadeout.models.vit import vit

__all__ = [
    "densenet40",
    "gcn",
    "lenet5",
    "mobilenetv2",
    "resnet18",
    "resnet20",
    "resnet32",
    "resnet34",
    "resnet44",
    "resnet50",
    "resnet56",
    "resnet101",
    "resnet110",
    "resnet152",
    "smallcnn",
    "vit",
]
