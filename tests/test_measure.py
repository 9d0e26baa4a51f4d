"""Measurements: totals worked out by hand, odd layers, and a model that is left as it was."""

import copy
import json
import sys
from typing import Any

import pytest
import torch
from torch import nn

import fadeout
from fadeout import engines, models
from fadeout._checks import MissingExtraError
from fadeout.compaction.sparse_products import SparseLinear
from fadeout.graph.example import Example
from fadeout.measure import Latency, latency, measure


def on_meta(build, *args, side=32, **kwargs):
    """Counts need no values: the meta device computes shapes alone."""
    with torch.device("meta"):
        return measure(build(*args, **kwargs), torch.empty(1, 3, side, side)).total


def conv(f_in, f_out, kernel, side):
    return f_in * f_out * kernel**2 * side**2


def norm(maps, side):
    return 2 * maps * side**2


@pytest.mark.parametrize(
    ("width", "by_input", "by_output"), [(16, 49_250_954, 41_386_634), (64, 775_817_738, 649_988_618)]
)
def test_resnet20_by_hand(width, by_input, by_output):
    w = width
    same = conv(3, w, 3, 32) + norm(w, 32) + 6 * conv(w, w, 3, 32) + 9 * norm(w, 32)
    same += 5 * conv(2 * w, 2 * w, 3, 16) + 10 * norm(2 * w, 16)
    same += 5 * conv(4 * w, 4 * w, 3, 8) + 10 * norm(4 * w, 8)
    same += 4 * w * 10 + 10

    def strided(first, second):
        return sum(conv(w, 2 * w, k, first) + conv(2 * w, 4 * w, k, second) for k in (3, 1))

    total = on_meta(models.resnet20, width=w)
    assert total.operations_input == same + strided(32, 16) == by_input
    assert total.operations_output == same + strided(16, 8) == by_output
    norms = 10 * norm(w, 32) + 10 * norm(2 * w, 16) + 10 * norm(4 * w, 8)
    assert total.macs == by_output - norms - 10
    tracked = w * 10 + 2 * w * 10 + 4 * w * 10  # running means and variances stand beside 30 norms' counters
    assert total.bytes == 4 * (total.parameters + 2 * tracked) + 8 * 30


def test_resnet18_by_hand():
    same = conv(3, 64, 3, 32) + norm(64, 32) + 4 * conv(64, 64, 3, 32) + 6 * norm(64, 32) + 512 * 10 + 10
    by_input = by_output = same
    for maps, side in ((128, 16), (256, 8), (512, 4)):
        same = 3 * conv(maps, maps, 3, side) + 7 * norm(maps, side)
        by_input += same + conv(maps // 2, maps, 3, 2 * side) + conv(maps // 2, maps, 1, 2 * side)
        by_output += same + conv(maps // 2, maps, 3, side) + conv(maps // 2, maps, 1, side)
    total = on_meta(models.resnet18)
    assert total.parameters == 11_177_802
    assert total.operations_input == by_input == 745_886_730
    assert total.operations_output == by_output == 557_143_050


def test_resnet50_by_hand():
    by_input = by_output = conv(3, 64, 3, 32) + norm(64, 32) + 2048 * 10 + 10
    inputs, before = 64, 32
    for maps, blocks, side in ((64, 3, 32), (128, 4, 16), (256, 6, 8), (512, 3, 4)):
        outputs = 4 * maps
        same = conv(inputs, maps, 1, before) + norm(maps, before)  # the stride comes after the first 1x1
        same += (blocks - 1) * (conv(outputs, maps, 1, side) + norm(maps, side))
        same += (blocks - 1) * conv(maps, maps, 3, side) + blocks * norm(maps, side)
        same += blocks * (conv(maps, outputs, 1, side) + 2 * norm(outputs, side)) + norm(outputs, side)
        by_input += same + conv(maps, maps, 3, before) + conv(inputs, outputs, 1, before)
        by_output += same + conv(maps, maps, 3, side) + conv(inputs, outputs, 1, side)
        inputs, before = outputs, side
    total = on_meta(models.resnet50)
    assert total.parameters == 23_551_050
    assert total.operations_input == by_input == 1_950_027_786
    assert total.operations_output == by_output == 1_308_299_274


@pytest.mark.parametrize(
    ("build", "arguments", "macs"),
    [
        (models.resnet18, {"post_norm": False}, 1_814_073_344),
        (models.resnet50, {"post_norm": False}, 4_089_184_256),
        (models.mobilenetv2, {}, 300_774_272),
    ],
)
def test_published_multiply_accumulates(build, arguments, macs):
    assert on_meta(build, 1000, stem="imagenet", side=224, **arguments).macs == macs


def only(measurement, name):
    (row,) = [row for row in measurement.rows if row.name == name]
    return row


def test_lenet_layer_by_layer():
    found = measure(models.lenet5(), torch.zeros(1, 1, 28, 28))
    assert [row.name for row in found.rows] == ["conv1", "conv2", "fc1", "fc2", "fc3"]
    assert [row.parameters for row in found.rows] == [156, 2416, 48120, 10164, 850]
    assert [row.macs for row in found.rows] == [6 * 25 * 784, 6 * 16 * 25 * 100, 400 * 120, 120 * 84, 840]
    # conv2 has no padding: 14 by 14 goes in, 10 by 10 comes out.
    assert [row.operations_input for row in found.rows] == [117_600, 6 * 16 * 25 * 196, 48_120, 10_164, 850]
    assert [row.operations_output for row in found.rows] == [117_600, 240_000, 48_120, 10_164, 850]
    assert found.total.parameters == 61_706


def test_grouped_and_transposed_convolutions():
    grouped = nn.Conv2d(8, 4, 3, groups=2, bias=False)
    row = measure(grouped, torch.zeros(1, 8, 5, 5)).total
    assert (row.operations_input, row.operations_output, row.macs) == (
        4 * 4 * 9 * 25,
        4 * 4 * 9 * 9,
        4 * 4 * 9 * 9,
    )
    transposed = nn.ConvTranspose2d(8, 4, 2, stride=2, groups=2, bias=False)
    row = measure(transposed, torch.zeros(1, 8, 3, 3)).total
    assert (row.operations_input, row.operations_output) == (8 * 2 * 4 * 9, 8 * 2 * 4 * 36)
    assert row.macs == row.operations_input  # each input pixel is multiplied by the whole kernel
    line = nn.Conv1d(2, 3, 5, padding=2)
    assert measure(line, torch.zeros(1, 2, 7)).total.operations_output == 2 * 3 * 5 * 7


def test_norms_other_than_batch_norm():
    for module in (nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.LayerNorm([4, 3, 3]), nn.BatchNorm2d(4)):
        row = measure(module, torch.zeros(2, 4, 3, 3)).total
        assert (row.operations_input, row.operations_output, row.macs) == (144, 144, 0)


def test_the_example_counts_as_given():
    model = models.resnet20(width=2)
    one, three = (measure(model, torch.zeros(n, 3, 8, 8)).total for n in (1, 3))
    assert three.macs == 3 * one.macs
    assert three.operations_input == 3 * one.operations_input
    assert three.parameters == one.parameters


class Odd(nn.Module):
    """A layer used twice, one never used, tied weights, a product by function, a table not saved."""

    def __init__(self):
        super().__init__()
        self.twice = nn.Linear(4, 4)
        self.never = nn.Linear(4, 2)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.twice.weight
        self.scale = nn.Parameter(torch.tensor([0.0, 1.0, 0.0, 2.0]))
        self.register_buffer("kept", torch.zeros(3))
        self.register_buffer("table", torch.zeros(100), persistent=False)

    def forward(self, x, times):
        x = self.tied(self.twice(self.twice(input=x))) * self.scale
        return times * (x @ x.transpose(-1, -2))


def test_odd_networks():
    model = Odd()
    x = torch.randn(1, 3, 4)
    found = measure(model, (x, 2.0))
    twice, never, tied, itself = (only(found, name) for name in ("twice", "never", "tied", ""))
    assert (twice.calls, twice.parameters, twice.operations_output, twice.macs) == (
        2,
        20,
        2 * 3 * 20,
        2 * 3 * 16,
    )
    assert (never.calls, never.parameters, never.operations_output, never.macs) == (0, 10, 0, 0)
    assert (tied.calls, tied.parameters, tied.macs) == (1, 4, 3 * 16)
    assert (itself.parameters, itself.nonzero, itself.macs, itself.bytes) == (4, 2, 3 * 4 * 3, 4 * 4 + 3 * 4)
    assert found.total.parameters == sum(p.numel() for p in model.parameters())
    assert found.to_dict() == measure(model, {"x": x, "times": 2.0}).to_dict()
    assert measure(nn.Sequential(model.twice, model.twice), x).total.parameters == 20


def test_attention_counts_however_it_is_written():
    b, t, dim, heads = 2, 5, 8, 2
    products = 4 * b * t * dim * dim + 2 * b * t * t * dim
    model = nn.MultiheadAttention(dim, heads, batch_first=True)
    x = torch.randn(b, t, dim)
    assert measure(model, (x, x, x)).total.macs == products
    assert measure(model, {"query": x, "key": x, "value": x, "need_weights": False}).total.macs == products
    ours = measure(models.vit(image_size=4, patch=2, dim=8, depth=1, heads=2), torch.zeros(1, 3, 4, 4))
    attention = [row for row in ours.rows if row.name.startswith("blocks.0.attention")]
    assert sum(row.macs for row in attention) == 4 * 4 * 8 * 8 + 2 * 4 * 4 * 8
    assert attention[0].operations_output == 0  # the paper's convention does not know products of activations


@pytest.mark.parametrize(("kind", "gates"), [(nn.RNN, 1), (nn.GRU, 3), (nn.LSTM, 4)])
def test_recurrent_layers_count_whatever_kernel_runs(kind, gates):
    """In inference PyTorch has one kernel for a whole layer of an LSTM."""
    model, x = kind(8, 6, num_layers=2, bidirectional=True), torch.randn(5, 3, 8)
    weights = sum(p.numel() for p in model.parameters() if p.dim() > 1)
    assert weights == 2 * gates * 6 * (8 + 6 + 12 + 6)
    assert measure(model, x).total.macs == 5 * 3 * weights


def test_bytes_are_those_of_the_state_dict():
    for model in (models.resnet20(width=2), models.vit(dim=12, depth=1).half(), models.lenet5().double()):
        dtype = next(model.parameters()).dtype
        side = 28 if isinstance(model, type(models.lenet5())) else 32
        x = torch.zeros(1, 1 if side == 28 else 3, side, side, dtype=dtype)
        assert measure(model, x).total.bytes == sum(t.nbytes for t in model.state_dict().values())


def test_nonzero():
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.weight.masked_fill_(torch.arange(12).reshape(3, 4) < 5, 0)
    total = measure(model, torch.zeros(1, 4)).total
    assert (total.parameters, total.nonzero) == (15, 10)


class Falls(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        raise RuntimeError(f"fell with {self.fc(x).shape}")


def state(model):
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    return hooks, [m.training for m in model.modules()], torch.backends.mha.get_fastpath_enabled()


def test_the_model_is_left_as_it_was(same_bits):
    model: Any = models.resnet20(width=2)
    model.layer2.eval()
    x = torch.randn(2, 3, 8, 8)
    model(x).sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    values, before, seed = copy.deepcopy(model.state_dict()), state(model), torch.get_rng_state()
    called = []
    handle = model.fc.register_forward_hook(lambda *args: called.append(1))
    measure(model, x, repeats=2)
    handle.remove()
    assert called
    assert state(model) == before
    assert torch.equal(torch.get_rng_state(), seed)
    same_bits(model.state_dict(), values)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))


@pytest.mark.filterwarnings("ignore:this machine is too busy")
def test_the_example_is_left_as_it_was():
    class Shifts(nn.Linear):
        def forward(self, input):
            return super().forward(input.add_(1))

    x = torch.zeros(1, 2)
    measure(Shifts(2, 2), x)
    latency(Shifts(2, 2), {"input": x}, repeats=2)
    engines.time_networks({"now": Shifts(2, 2)}, Example.of(x), "pytorch")
    assert not x.any()


def test_even_when_it_fails():
    model = Falls()
    before = state(model)
    for act in (measure, latency):
        with pytest.raises(ValueError, match="cannot be run on example_input: fell with"):
            act(model, torch.zeros(1, 2))
        assert state(model) == before


def test_wrappers_leave_no_trace_in_the_names():
    model = models.lenet5()
    x = torch.zeros(1, 1, 28, 28)
    plain = measure(model, x).to_dict()
    assert measure(nn.DataParallel(model), x).to_dict() == plain
    assert measure(torch.compile(model, backend="eager"), x).to_dict() == plain  # type: ignore[arg-type]
    assert measure(torch.optim.swa_utils.AveragedModel(model), x).to_dict() == plain


def test_table_and_dictionary():
    found = measure(models.lenet5(), torch.zeros(1, 1, 28, 28), repeats=3)
    *table, stored, last = str(found).splitlines()
    assert len({len(line) for line in table}) == 1
    assert table[0].split()[:4] == ["layer", "type", "calls", "parameters"]
    assert table[-1].split()[:4] == ["total", "LeNet5", "1", "61,706"]
    assert (stored, last) == (str(found.stored), f"latency {found.latency}")
    read = json.loads(json.dumps(found.to_dict()))
    assert read["total"]["parameters"] == 61_706
    assert read["rows"][1]["operations_input"] == 470_400
    assert read["latency"]["repeats"] == 3
    assert measure(models.lenet5(), torch.zeros(1, 1, 28, 28)).to_dict()["latency"] is None


def test_latency():
    found = latency(nn.Linear(2, 2), torch.zeros(1, 2), repeats=9)
    assert 0 < found.lower <= found.median <= found.upper < 1
    assert str(Latency(0.0123, 0.012, 0.0131, 9)) == "12.3 ms (quartiles 12 to 13.1, 9 passes)"


def test_what_cannot_be_measured():
    with pytest.raises(ValueError, match=r"a tuple of positional arguments or a mapping .* got list"):
        measure(nn.Linear(2, 2), [torch.zeros(1, 2)])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"repeats is a whole number from 2 up, .* got 1"):
        latency(nn.Linear(2, 2), torch.zeros(1, 2), repeats=1)
    with pytest.raises(ValueError, match="meta device cannot be timed"):
        latency(nn.Linear(2, 2, device="meta"), torch.zeros(1, 2, device="meta"))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is:DeprecationWarning")
def test_torchscript_is_refused():
    net = nn.Sequential(torch.jit.script(nn.Linear(2, 2)))
    with pytest.raises(ValueError, match=r"^0 is TorchScript, .*: measure the network that it was made of"):
        measure(net, torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"^the network is TorchScript"):
        measure(torch.jit.script(net), torch.zeros(1, 2))


def test_float8_is_counted():
    net = nn.Linear(2, 4)
    net.scales = nn.Parameter(torch.tensor([1.0, 0.0, -2.0]).to(torch.float8_e4m3fn), requires_grad=False)
    net.register_buffer("table", torch.tensor([0.0, 0.0, 3.0, -0.0] * 8).to(torch.float8_e5m2))
    found = measure(net, torch.zeros(1, 2))
    assert (found.total.parameters, found.total.nonzero) == (15, 14)
    assert found.stored.dense - found.stored.saved == 32 - 8 - 4  # of the table: values, and a bit for each


def test_bytes_of_each_form(tmp_path):
    """The estimate for a file is that of its tensors: what is left is the header."""
    model = nn.Sequential(nn.Linear(300, 200), nn.BatchNorm1d(200), nn.Linear(200, 100))
    fadeout.methods.one_shot(model, 0.95)
    found = fadeout.measure(model, torch.zeros(1, 300))
    stored = found.stored
    assert stored.dense == found.total.bytes
    fadeout.save(model, tmp_path / "model.safetensors")
    header = (tmp_path / "model.safetensors").stat().st_size - stored.saved
    assert -50 < header < 3000
    # of a batch-norm that has not trained, two of four vectors are zero
    assert stored.onnx == 12 * round(0.05 * 80_000) + 4 * (200 + 100) + 2 * 4 * 200 + 8
    assert f"{stored.saved:,} by fadeout.save" in str(found)
    assert found.to_dict()["stored"] == {"dense": stored.dense, "saved": stored.saved, "onnx": stored.onnx}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_products():
    layer = nn.Linear(4, 4)
    model = nn.Sequential(SparseLinear(layer.weight.detach().to_sparse_csr(), layer))
    assert measure(model, torch.zeros(1, 4)).total.bytes == 20 * 4


def test_bytes_of_a_network_without_zeros_or_values():
    found = fadeout.measure(nn.Linear(3, 3), torch.zeros(1, 3)).stored
    assert (found.dense, found.saved, found.onnx) == (48, 48, 48)
    meta = fadeout.measure(nn.Linear(3, 3, device="meta"), torch.zeros(1, 3, device="meta")).stored
    assert meta.dense == meta.onnx == 48


# Time in several engines ---------------------------------------------------------------------------------


@pytest.fixture
def seconds(monkeypatch):
    """What each engine takes, in place of a clock; the network before takes three times as long."""
    table = {"pytorch": 0.002, "channels_last": 0.001, "onnxruntime": 0.0005}

    def time_networks(networks, example, engine):
        if isinstance(table[engine], Exception):
            raise table[engine]
        return {name: table[engine] * (3 if name == "before" else 1) for name in networks}

    monkeypatch.setattr(sys.modules["fadeout.measure"], "time_networks", time_networks)  # not the function
    return table


def test_engines_stand_beside_what_operations_promise(seconds):
    dense, small = (nn.Sequential(nn.Conv2d(3, n, 1), nn.ReLU(), nn.Conv2d(n, 2, 1)) for n in (8, 2))
    found = measure(small, torch.zeros(1, 3, 10, 10), time=True, against=dense)
    assert str(found.speed).splitlines() == [
        "engine              ms   before  times as fast",
        "----------------------------------------------",
        "pytorch              2        6           3.00",
        "channels_last        1        3           3.00",
        "onnxruntime        0.5      1.5           3.00",
        "----------------------------------------------",
        "operations     0.001 M  0.004 M           4.00",
    ]
    assert str(found).endswith(str(found.speed))
    assert found.speed.faster["operations"] == 4
    assert json.loads(json.dumps(found.to_dict()))["speed"]["seconds"] == seconds


def test_engines_that_are_not_there_are_said_to_be(seconds):
    seconds["onnxruntime"] = MissingExtraError("onnxruntime is not installed")
    found = measure(nn.Linear(10, 10), torch.zeros(1, 10), time=True)
    assert str(found.speed).splitlines() == [
        "engine            ms",
        "--------------------",
        "pytorch            2",
        "--------------------",
        "operations  0.0001 M",
        "onnxruntime: onnxruntime is not installed",
    ]
    assert found.speed.faster == {}
    seconds["onnxruntime"] = ValueError("torch.export cannot trace the network\nand so on")
    found = measure(nn.Linear(10, 10), torch.zeros(1, 10), time=True)
    assert found.speed.missing == {"onnxruntime": "torch.export cannot trace the network"}


def test_what_cannot_be_timed():
    with pytest.raises(ValueError, match="pass time=True"):
        measure(nn.Linear(2, 2), torch.zeros(1, 2), against=nn.Linear(2, 2))
    with pytest.raises(ValueError, match="meta device"):
        measure(nn.Linear(2, 2, device="meta"), torch.zeros(1, 2, device="meta"), time=True)
