"""Export: files that were run before they were put in place."""

import random
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fadeout
from fadeout._checks import MissingExtraError
from fadeout.compaction.sparse_products import SparseLinear
from fadeout.graph.gather import Gather

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


class Residual(nn.Module):
    """An addition whose sides keep different channels once it is compacted."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, 3)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.dropout(x, 0.5, self.training)
        return self.fc(F.relu(x + self.bn2(self.conv2(x))).mean((2, 3)))


class Several(nn.Module):
    """Inputs of three kinds, one of them a scalar; outputs of two types, nested."""

    def forward(self, x, scale, *more):
        return {"scaled": x * scale, "others": [more[0].sum(1), x.argmax(1)]}


class Random(nn.Module):
    """Never gives the same twice."""

    def forward(self, x):
        return x + random.random()


def run(path, *inputs):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    outputs = session.run(None, {name: each.numpy() for name, each in zip(names, inputs, strict=True)})
    return [torch.from_numpy(each) for each in outputs]


@pytest.fixture
def compact():
    model = Residual()
    for norm, dead in ((model.bn1, [0, 1]), (model.bn2, [1, 2])):
        norm.weight.data[dead], norm.bias.data[dead] = 0, 0
    small = fadeout.compact(model, torch.randn(2, 2, 5, 5))
    assert any(isinstance(module, Gather) for module in small.modules())
    small.bn1.eval()  # a mode of its own, which the export must not touch
    return small


def modes(model):
    return {name: module.training for name, module in model.named_modules()}


def test_onnx_of_a_compact_residual_network(compact, tmp_path, capfd):
    path, before = tmp_path / "small.onnx", modes(compact)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = fadeout.export.onnx(compact, path, torch.randn(1, 2, 5, 5))
    assert capfd.readouterr() == ("", "")
    assert not caught
    assert modes(compact) == before
    assert (result.path, result.bytes) == (path, path.stat().st_size)
    assert result.difference < 1e-5
    assert list(tmp_path.iterdir()) == [path]
    assert b".py" not in path.read_bytes()  # no paths of the user's files
    compact.eval()
    for batch in (1, 2, 7):
        x = torch.randn(batch, 2, 5, 5)
        (found,) = run(path, x)
        torch.testing.assert_close(found, compact(x), rtol=1e-4, atol=1e-5)


def test_several_inputs_and_outputs(tmp_path):
    path = tmp_path / "several.onnx"
    inputs = torch.randn(2, 3), torch.tensor(2.0), torch.randn(2, 4)
    fadeout.export.onnx(Several(), path, inputs)
    inputs = torch.randn(5, 3), torch.tensor(3.0), torch.randn(5, 4)
    scaled, total, largest = run(path, *inputs)
    torch.testing.assert_close(scaled, inputs[0] * 3)
    torch.testing.assert_close(total, inputs[2].sum(1))
    assert torch.equal(largest, inputs[0].argmax(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_sparse_initializers(tmp_path, dtype):
    """Those with enough zeros, and only those; the file is smaller, and the outputs are equal."""
    model = nn.Sequential(nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 50), nn.ReLU(), nn.Linear(50, 7)).to(
        dtype
    )
    fadeout.methods.one_shot(model, 0.95, prunable=["0.weight"])
    fadeout.methods.one_shot(model, 0.6, prunable=["2.weight"])
    model[4].weight.data.zero_()
    example = torch.randn(3, 40, dtype=dtype)
    dense = fadeout.export.onnx(model, tmp_path / "dense.onnx", example, tolerance=1e-2)
    sparse = fadeout.export.onnx(model, tmp_path / "sparse.onnx", example, tolerance=1e-2, sparse=True)
    graph = onnx.load(str(sparse.path)).graph
    assert [each.values.name for each in graph.sparse_initializer] == ["0.weight", "4.weight"]
    assert sorted(each.name for each in graph.initializer) == ["0.bias", "2.bias", "2.weight", "4.bias"]
    onnx.checker.check_model(str(sparse.path))
    each = dtype.itemsize
    spared = (40 * 60 - 120) * each - 120 * 8 + 50 * 7 * each
    assert spared - 200 < dense.bytes - sparse.bytes < spared
    assert torch.equal(*(run(file.path, example)[0] for file in (dense, sparse)))


def test_a_dense_network_has_no_sparse_initializers(tmp_path):
    plain, sparse = (
        fadeout.export.onnx(nn.Linear(4, 4), tmp_path / "model.onnx", torch.randn(1, 4), sparse=sparse).bytes
        for sparse in (False, True)
    )
    assert plain == sparse


def test_a_weight_that_is_an_output_stays_dense(tmp_path):
    class Shows(nn.Linear):
        def forward(self, x):
            return super().forward(x), self.weight

    model = Shows(20, 20)
    fadeout.methods.one_shot(model, 0.9)
    file = fadeout.export.onnx(model, tmp_path / "model.onnx", torch.randn(2, 20), sparse=True).path
    assert torch.equal(run(file, torch.randn(3, 20))[1], model.weight)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("export", [fadeout.export.onnx, fadeout.export.program])
def test_sparse_products_are_refused(tmp_path, export):
    layer = nn.Linear(4, 4)
    model = nn.Sequential(SparseLinear(layer.weight.detach().to_sparse_csr(), layer))
    with pytest.raises(ValueError, match="network that it was made of"):
        export(model, tmp_path / "model", torch.randn(2, 4))


class AnyWords(nn.Linear):
    def forward(self, **given):
        return super().forward(given["x"]) + given["more"]


class SomeWords(nn.Linear):
    def forward(self, x, *, scale, **given):
        return super().forward(x) * scale + given["more"] - given["less"]


@pytest.mark.parametrize(
    ("export", "build", "names", "dynamic"),
    [
        (fadeout.export.onnx, AnyWords, ("more", "x"), True),
        (fadeout.export.onnx, SomeWords, ("more", "x", "less", "scale"), False),
        (fadeout.export.program, AnyWords, ("more", "x"), False),
        (fadeout.export.program, SomeWords, ("more", "x", "less", "scale"), True),
    ],
)
def test_any_keyword_arguments(tmp_path, export, build, names, dynamic):
    model = build(4, 4)
    example = {name: torch.randn(2, 4) for name in names}
    assert export(model, tmp_path / "model", example, dynamic_batch=dynamic).difference < 1e-5
    assert "forward" not in vars(model)
    if dynamic and export is fadeout.export.program:
        larger = {name: torch.randn(5, 4) for name in names}
        again = torch.export.load(tmp_path / "model").module()
        torch.testing.assert_close(again(**larger), model(**larger))


def test_bfloat16_comes_with_advice(tmp_path):
    with pytest.raises(RuntimeError, match="export a copy in float32"):
        fadeout.export.onnx(nn.Linear(4, 4).bfloat16(), tmp_path / "model.onnx", torch.ones(2, 4).bfloat16())


def test_sparse_tensors_that_come_back_wrong_are_noticed(tmp_path, monkeypatch):
    def shifted(model):
        for each in (made := right(model)).graph.sparse_initializer:
            each.indices.raw_data = each.indices.raw_data[8:] + each.indices.raw_data[:8]
        return made

    right = fadeout.export._sparse
    monkeypatch.setattr(fadeout.export, "_sparse", shifted)
    model = nn.Linear(40, 60)
    fadeout.methods.one_shot(model, 0.95)
    with pytest.raises(RuntimeError, match=r"are off by|cannot be made"):
        fadeout.export.onnx(model, tmp_path / "model.onnx", torch.randn(1, 40), sparse=True)
    assert not list(tmp_path.iterdir())


def test_program_of_a_compact_residual_network(compact, tmp_path):
    path, before = tmp_path / "small.pt2", modes(compact)
    result = fadeout.export.program(nn.DataParallel(compact), path, torch.randn(1, 2, 5, 5))
    assert modes(compact) == before
    assert (result.bytes, list(tmp_path.iterdir())) == (path.stat().st_size, [path])
    again, x = torch.export.load(path).module(), torch.randn(7, 2, 5, 5)
    torch.testing.assert_close(again(x), compact.eval()(x))


@pytest.mark.parametrize("kind", ["onnx", "program"])
def test_outputs_that_differ_leave_the_old_file(tmp_path, kind):
    path = tmp_path / "model"
    path.write_text("old")
    with pytest.raises(
        RuntimeError, match=r"off by 0\.\d+, and 0\.0001 is accepted: .*model was not written"
    ):
        getattr(fadeout.export, kind)(Random(), path, torch.randn(2, 3))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_tolerance_is_the_users(tmp_path):
    result = fadeout.export.program(Random(), tmp_path / "model.pt2", torch.randn(2, 3), tolerance=1)
    assert 1e-4 < result.difference < 1


def test_a_network_that_works_in_place_leaves_the_example(tmp_path):
    x = torch.randn(2, 3)
    before = x.clone()
    fadeout.export.program(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 3)), tmp_path / "model.pt2", x)
    assert torch.equal(x, before)


def test_a_batch_that_cannot_be_dynamic(tmp_path):
    class Pairs(nn.Module):
        def forward(self, x):
            return x.reshape(2, -1)

    with pytest.raises(ValueError, match=r"cannot trace the network; .* pass dynamic_batch=False"):
        fadeout.export.program(Pairs(), tmp_path / "pairs.pt2", torch.randn(2, 3))
    assert not list(tmp_path.iterdir())
    fadeout.export.program(Pairs(), tmp_path / "pairs.pt2", torch.randn(2, 3), dynamic_batch=False)


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ((), "example_input is a tensor"),
        ([torch.zeros(2)], "example_input is a tensor"),
        ((torch.zeros(2, 3), torch.zeros(4, 3)), r"same first dimension, not empty; theirs are \[2, 4\]"),
        (torch.zeros(0, 3), "not empty"),
        (torch.zeros(2, 5), "the model cannot be run on example_input"),
        ((torch.zeros(2, 3), torch.zeros(2, 3)), "the model cannot be run on example_input"),
    ],
)
def test_examples_that_do_not_fit(tmp_path, example, message):
    with pytest.raises(ValueError, match=message):
        fadeout.export.onnx(nn.Linear(3, 3), tmp_path / "model.onnx", example)
    assert not list(tmp_path.iterdir())


def test_what_the_exporter_or_onnxruntime_cannot_do(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise NotImplementedError("no such operator")

    monkeypatch.setattr(torch.onnx, "export", refuse)
    with pytest.raises(RuntimeError, match="cannot be made of this network, or not run: no such operator"):
        fadeout.export.onnx(nn.Linear(3, 3), tmp_path / "model.onnx", torch.zeros(2, 3))
    assert not list(tmp_path.iterdir())


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(
        MissingExtraError, match=r'onnxruntime is not installed: pip install "fadeout\[export\]"'
    ):
        fadeout.export.onnx(nn.Linear(3, 3), tmp_path / "model.onnx", torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("wanted", "found", "difference"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.25),
        ([0.1, 0.2], [0.1, 0.3], 0.1),
        ([float("nan"), float("inf")], [float("nan"), float("inf")], 0.0),
        ([float("nan"), 1.0], [0.0, 1.0], float("inf")),
        ([1.0], [1.0, 2.0], float("inf")),
        ([], [], 0.0),
    ],
)
def test_differences_by_hand(wanted, found, difference):
    measured = fadeout.export._difference([torch.tensor(wanted)], [torch.tensor(found)])
    assert measured == pytest.approx(difference)


class ByName(nn.Module):
    """As networks of transformers: arguments by name, outputs in a mapping."""

    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, attention_mask=None, input_ids=None):
        words = self.words(input_ids)
        if attention_mask is not None:
            words = words * attention_mask.unsqueeze(-1)
        return {"logits": self.out(words.mean(1))}


@pytest.mark.parametrize("kind", ["onnx", "program"])
def test_arguments_by_name(tmp_path, kind):
    example = {"input_ids": torch.randint(9, (2, 5)), "attention_mask": torch.ones(2, 5)}
    file = tmp_path / "network"
    assert getattr(fadeout.export, kind)(ByName(), file, example).difference < 1e-5
