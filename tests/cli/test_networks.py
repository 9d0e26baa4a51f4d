"""The commands that work on files: a saved network goes through all of them."""

import importlib
import warnings

import pytest
import torch

import fadeout
from fadeout.cli import main

MODEL = ("--model", "fadeout.models:lenet5")


@pytest.fixture
def saved(tmp_path):
    """LeNet-5 with whole channels zeroed, saved but not cut."""
    model = fadeout.models.lenet5()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    structure = fadeout.Channels(torch.zeros(1, 1, 28, 28), by="norm")
    pruner = fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.8, steps=1, structure=structure)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nothing has faded yet
        pruner.remove()
    fadeout.save(model, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_compact_then_inspect_then_export(saved, capsys):
    small, onnx = saved.with_name("small.safetensors"), saved.with_name("small.onnx")
    main(["compact", str(saved), str(small), *MODEL, "--input", "1,1,28,28"])
    assert "61,706 parameters -> " in capsys.readouterr().out
    left = sum(p.numel() for p in fadeout.load(small, fadeout.models.lenet5).parameters())
    assert left <= 0.2 * 61_706
    main(["inspect", str(small), *MODEL])  # it knows its own input
    assert f"{left:,}" in capsys.readouterr().out
    main(["export", str(small), str(onnx), *MODEL])
    assert onnx.stat().st_size > 4 * left
    said = capsys.readouterr().out
    assert said.startswith(f"written to {onnx}: {onnx.stat().st_size:,} bytes, outputs within ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["inspect", "{file}", "--model", "lenet5"], "package.module:function"),
        (["inspect", "{file}", "--model", "fadeout.models:lenet6"], "lenet6"),
        (["inspect", "{file}", "--model", "no.such.module:f"], "no.such.module"),
        (["inspect", "{file}", *MODEL], "--input 1,3,32,32"),
        (["inspect", "{file}", *MODEL, "--input", "1x28"], "1x28"),
        (["inspect", "{file}", *MODEL, "--input", "1,1,28,28:int7"], "1,1,28,28:int7"),
        (["inspect", "{file}", *MODEL, "--input", "x=1,1,28,28", "1"], "names for all or for none"),
        (["inspect", "nowhere.safetensors", *MODEL], "nowhere.safetensors"),
        (["inspect", "nowhere.safetensors"], "nowhere.safetensors"),
        (["inspect", "{file}", "--repeats", "3"], "pass --model"),
        (["export", "{file}", "model.tflite", *MODEL], ".onnx or .pt2"),
        (["inspect", "{file}", "--model", "fadeout.models:resnet20", "--input", "1,3,32,32"], "conv1"),
    ],
)
def test_wrong_input_gets_a_line(saved, capsys, arguments, words):
    with pytest.raises(SystemExit) as end:
        main([str(saved) if one == "{file}" else one for one in arguments])
    complaint = capsys.readouterr().err
    assert end.value.code == 2
    assert words in complaint
    assert "Traceback" not in complaint


READER = """
import torch

class Reader(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(50, 8)
        self.hidden, self.head = torch.nn.Linear(8, 16), torch.nn.Linear(16, 2)

    def forward(self, tokens, weights):
        return self.head(self.hidden(self.words(tokens)).relu() * weights.unsqueeze(-1))
"""


@pytest.mark.parametrize("given", [("tokens=1,6:int64", "weights=1,6"), ("1,6:int64", "1,6")])
def test_networks_of_several_inputs_and_types(tmp_path, monkeypatch, capsys, given):
    (tmp_path / "reader.py").write_text(READER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    model = importlib.import_module("reader").Reader()
    model.hidden.weight.data[:4], model.hidden.bias.data[:4] = 0, 0
    fadeout.save(model, tmp_path / "reader.safetensors")
    same = ("--model", "reader:Reader")
    main(["compact", "reader.safetensors", "small.safetensors", *same, "--input", *given])
    assert "578 parameters -> 534 " in capsys.readouterr().out  # four neurons less: 4 x (8 + 1 + 2)
    main(["inspect", "small.safetensors", *same])  # it knows its own inputs
    main(["export", "small.safetensors", "small.onnx", *same, "--input", *given])


def test_a_file_tells_of_itself(saved, capsys):
    small = saved.with_name("small.safetensors")
    main(["compact", str(saved), str(small), *MODEL, "--input", "1,1,28,28"])
    capsys.readouterr()
    main(["inspect", str(saved)])
    whole = capsys.readouterr().out
    assert "not compact" in whole
    assert "61,706 parameters, " in whole
    main(["inspect", str(small)])
    cut = capsys.readouterr().out
    assert "compact: cut for inputs of 1x1x28x28 float32" in cut
    assert "61,706 parameters -> " in cut
    assert f"file: {small.stat().st_size:,} bytes" in cut
