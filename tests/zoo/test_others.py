"""Networks of Ultralytics, MONAI, PyTorch Geometric and torch itself."""

import pytest
import torch
from support.zoo import check_delivery
from torch import nn

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("name", ["yolov8n.yaml", "yolo11n-cls.yaml"])
def test_networks_of_ultralytics(name, tmp_path, monkeypatch):
    for variable, value in {"CONFIG_DIR": str(tmp_path), "OFFLINE": "true", "AUTOINSTALL": "false"}.items():
        monkeypatch.setenv(f"YOLO_{variable}", value)
    tasks = pytest.importorskip("ultralytics.nn.tasks")
    kind = tasks.ClassificationModel if "cls" in name else tasks.DetectionModel

    def build():
        model = kind(name, nc=3, verbose=False)
        return model.requires_grad_()

    small = check_delivery(build, torch.randn(2, 3, 64, 64))
    assert type(small) is kind  # with its own forward


def test_a_network_of_monai():
    nets = pytest.importorskip("monai.networks.nets")
    sizes = {
        "spatial_dims": 2,
        "in_channels": 1,
        "out_channels": 2,
        "channels": (4, 8, 16),
        "strides": (2, 2),
    }
    check_delivery(lambda: nets.UNet(**sizes), torch.randn(2, 1, 32, 32))


@pytest.mark.parametrize("name", ["GraphSAGE", "GIN"])
def test_networks_of_pytorch_geometric(name):
    models = pytest.importorskip("torch_geometric.nn.models")
    graph = {"x": torch.randn(20, 16), "edge_index": torch.randint(20, (2, 80))}
    check_delivery(lambda: getattr(models, name)(16, 32, num_layers=3, out_channels=4), graph)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_networks(kind):
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.recurrent = nn.Embedding(16, 8), kind(8, 24, num_layers=2, batch_first=True)
            self.head = nn.Linear(24, 4)

        def forward(self, x):
            return self.head(self.recurrent(self.embed(x))[0][:, -1])

    check_delivery(Reader, torch.randint(16, (2, 9)))
