"""Networks of timm."""

import pytest
import torch
from support.zoo import check_delivery

pytestmark = pytest.mark.slow

NETWORKS = {
    "resnet18": {"drop_path_rate": 0.1},
    "seresnet18": {"drop_path_rate": 0.1},
    "mobilenetv3_small_050": {},
    "vit_tiny_patch16_224": {"img_size": 64, "depth": 2},
    "visformer_tiny": {"img_size": 64, "depth": (1, 1, 1)},
    "levit_128s": {"img_size": 64, "depth": (1, 1, 1)},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_timm(name):
    timm = pytest.importorskip("timm")
    images = torch.randn(2, 3, 64, 64)
    check_delivery(lambda: timm.create_model(name, num_classes=10, **NETWORKS[name]), images)
