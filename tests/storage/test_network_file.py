"""Save and load: the same network comes back, or an error that says what is wrong."""

import copy
import json
import re
from functools import partial

import pytest
import safetensors
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim.swa_utils import AveragedModel

import fadeout
from fadeout.compaction.plan import plans_of
from fadeout.graph.gather import Gather


class Residual(nn.Module):
    """An addition whose sides are read by others too, so that its forward must be rewritten."""

    def __init__(self, width=6):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.fc = nn.Linear(width, 3)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.dropout(x, 0.5, self.training)
        y = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(x)))))
        return self.fc(F.relu(x + y).mean((2, 3)))


class Compiled(nn.Module):
    """What ``torch.compile`` does to names, without waiting for the compiler."""

    def __init__(self, module):
        super().__init__()
        self._orig_mod = module


def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def kill(module, channels):
    """Zero some outputs of a layer or a norm."""
    with torch.no_grad():
        module.weight[channels], module.bias[channels] = 0, 0


def rewrite(path, change):
    """Let ``change`` alter the fields of a file, without mending its checksum."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    fields = json.loads(header["__metadata__"]["fadeout"])
    change(header, fields)
    header["__metadata__"]["fadeout"] = json.dumps(fields)
    new = json.dumps(header).encode()
    path.write_bytes(len(new).to_bytes(8, "little") + new + content[8 + length :])


def assert_same(one, other, *inputs):
    assert type(one).__name__ == type(other).__name__
    assert list(one.state_dict()) == list(other.state_dict())
    for (name, mine), theirs in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert mine.dtype == theirs.dtype, name
        assert torch.equal(mine, theirs), name
    for mode in (True, False) if inputs else ():
        torch.manual_seed(1)
        mine = copy.deepcopy(one).train(mode)(*inputs)
        torch.manual_seed(1)
        assert torch.equal(mine, copy.deepcopy(other).train(mode)(*inputs))
    if inputs:  # an output that does not depend on the input would prove nothing
        assert mine.std(0).max() > 0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.fixture
def saved(path):
    """A small network in a file."""
    torch.manual_seed(0)
    fadeout.save(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), path)
    return path


def build():
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def test_a_network_that_was_never_compacted(path):
    model = mlp()
    fadeout.save(model, path)
    loaded = fadeout.load(path, mlp)
    assert_same(model, loaded, torch.randn(3, 4))
    assert loaded.training
    assert not fadeout.load(path, lambda: mlp().eval()).training
    assert not fadeout.load(path, lambda: mlp().requires_grad_(False))[0].weight.requires_grad


def test_a_compact_resnet(path):
    def build():
        return fadeout.models.resnet20(width=4)

    model, x = build(), torch.randn(3, 3, 8, 8)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            kill(module, torch.randperm(module.num_features)[: module.num_features // 4])
    small = fadeout.compact(model, x)
    assert isinstance(small, fadeout.models.resnet.ResNet)
    fadeout.save(small, path)
    assert_same(small, fadeout.load(path, build), x)


def test_a_rewritten_forward_and_a_second_compaction(path):
    model, x = Residual(), torch.randn(3, 1, 5, 5)
    kill(model.bn1, [0, 1])
    kill(model.bn3, [1, 2])
    small = fadeout.compact(model, x)
    assert isinstance(small, fx.GraphModule)
    assert isinstance(small.place_0, Gather)
    fadeout.save(small, path)
    assert_same(small, fadeout.load(path, Residual), x)

    kill(small.bn2, [0])
    smaller = fadeout.compact(small, x)
    assert len(plans_of(smaller)) == 2
    fadeout.save(smaller, path)
    loaded = fadeout.load(path, Residual)
    assert_same(smaller, loaded, x)
    fadeout.save(loaded, path)  # plans are kept: what was loaded can be saved again
    assert_same(smaller, fadeout.load(path, Residual), x)


def test_constants_that_became_biases(path):
    def build():
        return nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 2, bias=False))

    model = build()
    kill(model[0], [1, 5])
    small = fadeout.compact(model, torch.zeros(1, 4))
    assert small[2].bias is not None
    fadeout.save(small, path)
    assert_same(small, fadeout.load(path, build), torch.randn(3, 4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_type_is_that_of_the_file(path, dtype):
    model, x = Residual().to(dtype), torch.randn(3, 1, 5, 5, dtype=dtype)
    kill(model.bn1, [0, 1])
    small = fadeout.compact(model, x)
    fadeout.save(small, path)
    assert_same(small, fadeout.load(path, Residual), x)


def test_every_kind_of_tensor_in_one_network(path):
    class Everything(nn.Module):
        def __init__(self):
            super().__init__()
            shared = torch.arange(12.0)
            self.register_buffer("first", shared[:8])
            self.register_buffer("second", shared[4:])
            self.register_buffer("scalar", torch.tensor(7))
            self.register_buffer("empty", torch.empty(0, 3))
            self.register_buffer("flags", torch.tensor([True, False]))
            self.register_buffer("odd", torch.tensor([-0.0, float("nan"), float("-inf")]))
            self.register_buffer("complex", torch.tensor([1 + 2j], dtype=torch.complex128))
            self.register_buffer("hidden", torch.ones(1), persistent=False)
            self.turned = nn.Parameter(torch.randn(3, 4).T)
            self.short = nn.Parameter(torch.randn(3).bfloat16())

    model = Everything()
    fadeout.save(model, path)
    for name, tensor in fadeout.load(path, Everything).state_dict().items():
        wanted = model.state_dict()[name]
        assert (tensor.dtype, tensor.shape) == (wanted.dtype, wanted.shape)
        assert bytes(tensor.reshape(-1).view(torch.uint8)) == bytes(wanted.reshape(-1).view(torch.uint8))


def test_tied_parameters_are_stored_once_and_stay_tied(path):
    def build():
        model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9, bias=False))
        model[1].weight = model[0].weight
        return model

    model = build()
    fadeout.save(model, path)
    with safetensors.safe_open(path, "pt") as file:
        assert list(file.keys()) == ["0.weight"]
        assert torch.equal(file.get_tensor("0.weight"), model[0].weight)
    loaded = fadeout.load(path, build)
    assert loaded[0].weight is loaded[1].weight
    assert_same(model, loaded, torch.arange(9))


def test_wrapped_models_and_wrapped_layers(path):
    model = mlp()
    fadeout.save(nn.DataParallel(model), path)
    assert_same(model, fadeout.load(path, mlp))
    inside = copy.deepcopy(model)
    inside[0] = Compiled(inside[0])
    fadeout.save(inside, path)
    assert_same(model, fadeout.load(path, lambda: AveragedModel(mlp())))
    assert torch.equal(fadeout.load(path, lambda: Compiled(inside))[0]._orig_mod.weight, model[0].weight)


def test_a_sparse_network_takes_a_few_percent(path):
    def build():
        return nn.Sequential(
            nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10)
        )

    model = build()
    dense = sum(4 * parameter.numel() for parameter in model.parameters())
    with torch.no_grad():
        for layer in (model[0], model[2], model[4]):
            layer.weight.masked_fill_(torch.rand_like(layer.weight) < 0.99, 0)
    fadeout.save(model, path)
    assert path.stat().st_size < 0.02 * dense
    assert_same(model, fadeout.load(path, build))


def test_the_same_network_gives_the_same_bytes(path, tmp_path):
    fadeout.save(mlp().requires_grad_(False), path)
    fadeout.save(fadeout.load(path, mlp), tmp_path / "again")
    assert path.read_bytes() == (tmp_path / "again").read_bytes()


def test_a_crash_while_writing_leaves_the_old_file(path, monkeypatch):
    model = mlp()
    fadeout.save(model, path)

    def half(tensors, file, metadata):
        file.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(safetensors.torch, "save_file", half)
    with pytest.raises(OSError, match="disk full"):
        fadeout.save(mlp(), path)
    assert list(path.parent.iterdir()) == [path]
    assert_same(model, fadeout.load(path, mlp))


def test_every_truncation_is_noticed(saved):
    content = saved.read_bytes()
    for length in range(0, len(content), 3):
        saved.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"truncated|altered"):
            fadeout.load(saved, build)
    saved.write_bytes(content[:-1])
    with pytest.raises(ValueError, match=r"tensor '1.weight': the file is truncated"):
        fadeout.load(saved, build)


def test_every_altered_byte_is_noticed_or_does_no_harm(saved):
    content, wanted = saved.read_bytes(), fadeout.load(saved, build)
    noticed = 0
    for position in range(len(content)):
        altered = bytearray(content)
        altered[position] ^= 1 << position % 7
        saved.write_bytes(altered)
        try:
            assert_same(wanted, fadeout.load(saved, build))
        except ValueError:
            noticed += 1
    assert noticed > 0.6 * len(content)  # the names of types in safetensors' own header are not needed


def test_an_altered_tensor_is_named(saved):
    content = bytearray(saved.read_bytes())
    content[-1] ^= 1
    saved.write_bytes(content)
    with pytest.raises(ValueError, match=r"tensor '1.weight': its bytes were altered"):
        fadeout.load(saved, build)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header, fields: fields.update(version=2), "'version' is 2, and this fadeout reads up to 1"),
        (lambda header, fields: fields.pop("version"), "lacks 'version'"),
        (lambda header, fields: fields.pop("checksum"), "lacks 'checksum'"),
        (lambda header, fields: fields.update(tied={"a": "b"}), "'checksum' differs"),
        (lambda header, fields: header.pop("0.weight"), "tensor '0.weight' is missing"),
        (lambda header, fields: header["0.weight"].pop("shape"), None),
    ],
)
def test_altered_fields_are_named(saved, change, message):
    rewrite(saved, change)
    if message is None:  # not a field that is needed
        fadeout.load(saved, build)
        return
    with pytest.raises(ValueError, match=re.escape(message)):
        fadeout.load(saved, build)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: nn.Sequential(nn.Linear(3, 2)), r"build\(\) makes no '1.bias', '1.num_batches_tracked'"),
        (lambda: nn.Sequential(*build(), nn.Linear(2, 1)), r"the file has no '2.weight', '2.bias'"),
        (
            lambda: nn.Sequential(nn.Linear(5, 2), nn.BatchNorm1d(2)),
            r"'0.weight' is float32 \(2, 3\) in the file",
        ),
        (lambda: "network", "makes a str"),
        (lambda: build().to("meta"), r"on the device 'meta', where weights have no values.*to_empty"),
    ],
)
def test_another_architecture_is_refused(saved, other, message):
    with pytest.raises(ValueError, match=message):
        fadeout.load(saved, other)


@pytest.mark.parametrize("wrap", [checkpoint_wrapper, partial(torch.compile, backend="eager")])
@pytest.mark.parametrize("for_inference", [False, True])
def test_parts_may_be_wrapped_there_and_not_here(path, wrap, for_inference):
    model = nn.Sequential(wrap(Residual()), nn.ReLU())
    kill(model[0].bn1, [0, 1])
    kill(model[0].bn2, [2])
    example = torch.zeros(2, 1, 5, 5)
    small = fadeout.compact(model, example, for_inference=for_inference).eval()
    fadeout.save(small, path)
    loaded = fadeout.load(path, lambda: nn.Sequential(Residual(), nn.ReLU())).eval()
    images = torch.randn(2, 1, 5, 5)
    assert torch.equal(loaded(images), small(images))


@pytest.mark.parametrize("other", [lambda: Residual(2), mlp])
def test_a_plan_for_another_architecture_is_refused(path, other):
    model = Residual()
    kill(model.bn1, [0, 1])
    fadeout.save(fadeout.compact(model, torch.zeros(1, 1, 5, 5)), path)
    with pytest.raises(ValueError, match=r"field 'plans' \(number 0\) does not fit what build\(\) makes"):
        fadeout.load(path, other)


def test_files_of_others_are_refused(path):
    with pytest.raises(FileNotFoundError):
        fadeout.load(path, mlp)
    for content in (b"", b"PK\x03\x04 something else", b"\2" + bytes(7) + b"[]", b"\2" + bytes(7) + b"{]"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="no safetensors file"):
            fadeout.load(path, mlp)
    safetensors.torch.save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match=r"not written by fadeout.save"):
        fadeout.load(path, mlp)


def test_what_cannot_be_saved_or_built_is_refused(path):
    with pytest.raises(ValueError, match="build is a constructor"):
        fadeout.load(path, mlp())
    model = mlp()
    kill(model[0], [0])
    outer = nn.Sequential(nn.Linear(4, 4), fadeout.compact(model, torch.zeros(1, 4)))
    with pytest.raises(ValueError, match="'1' was compacted by itself"):
        fadeout.save(outer, path)

    class Stateful(nn.Linear):
        def get_extra_state(self):
            return {"step": 3}

    with pytest.raises(ValueError, match="'_extra_state' in the state_dict is a dict"):
        fadeout.save(Stateful(2, 2), path)
    layer = nn.Linear(2, 2)
    layer.register_buffer("graph", torch.eye(2).to_sparse())
    with pytest.raises(ValueError, match=r"'graph': a torch.sparse_coo tensor"):
        fadeout.save(layer, path)
    assert not path.exists()
