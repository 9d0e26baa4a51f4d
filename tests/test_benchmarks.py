"""The benchmarks run, on tiny sizes; what they measure there means nothing."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parent.parent / "benchmarks"
EAGER = {"eager": False}


@pytest.fixture(autouse=True)
def _on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    before = set(sys.modules)
    yield
    own = {path.stem for path in FOLDER.glob("*.py")}
    for name in (set(sys.modules) - before) & own:  # common names, such as "run"
        del sys.modules[name]


def part(name, **changes):
    module = importlib.import_module(name)
    return module.measure(**{**module.QUICK, **changes})


def test_step_cost():
    found = part("step_cost", kinds=EAGER)
    assert [row.at_least for row in found.rows] == [30, None] * 2
    assert all(value > 0 for row in found.rows for value in row.values)


@pytest.mark.slow
def test_memory_of_a_step_is_counted():
    found = part("memory", count=300_000, kinds=EAGER)
    sizes = {row.what: row.values[1] for row in found.rows}
    for place in ("mid training", "the last tenth"):
        # a sort of all scores, its indices and its scratch space are many times the weights
        assert 0 < sizes[f"eager, {place}"] < sizes[f"sort and autograd, {place}"] / 2


def test_growth():
    found = part("growth")
    assert [point["weights"] for point in found.facts["points"]] == [1000, 3000, 10_000]


@pytest.mark.slow
def test_binding():
    found = part("binding")
    assert [row.at_most for row in found.rows] == [5000, 0.02] * 2
    assert all(value > 0 for row in found.rows for value in row.values)


@pytest.mark.slow
def test_training_step():
    found = part("training_step")
    assert len(found.rows) == 36
    assert all(0 < row.values[1] < 1 for row in found.rows)


@pytest.mark.slow
def test_scaling():
    found = part("scaling")
    assert len(found.rows) == 4
    assert all(row.values[1] > 0 for row in found.rows)
    assert "1024" in found.about


def test_many_processes_on_paper():
    machine = importlib.import_module("scaling").Machine("", bandwidth=12e9, latency=1e-6)
    assert machine.step(weights=1e9, processes=1, sums=4) == (1.0, 0.0)
    own, sums = machine.step(weights=1e9, processes=1024, sums=4)
    assert own == 1 / 1024
    assert sums == pytest.approx(80e-6)


@pytest.mark.slow
def test_rivals(capsys):
    contestants = importlib.import_module("contestants")

    def absent(training):
        import no_such_tool  # pyright: ignore[reportMissingImports] # noqa: F401

    some = {"ours": contestants.elements_eager, "masks": contestants.masks_held, "absent": absent}
    found = part("rivals", contestants=some)
    assert capsys.readouterr().out == "absent is left out: no_such_tool is not installed\n"
    added = {row.what: row.values[1] for row in found.rows}
    assert added["masks: memory"] > 17_700 * 4 / 1e6  # MB: as much as the weights
    assert added["ours: memory"] < 8


@pytest.mark.parametrize("name", ["channels", "masks_renewed"])
def test_other_contestants_take_a_step(name):
    training = importlib.import_module("trainings").resnet20(4, 2, 8)
    step = getattr(importlib.import_module("contestants"), name)(training)
    before = [parameter.detach().clone() for parameter in training.model.parameters()]
    step()
    after = list(training.model.parameters())
    assert len(after) == len(before)
    assert any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("tool", ["torch_pruning", "torchao"])
@pytest.mark.filterwarnings("default")  # theirs are not ours to mend
def test_other_tools_where_they_are_installed(tool):
    pytest.importorskip(tool)
    prefix = {"torch_pruning": "Torch-Pruning", "torchao": "torchao"}[tool]
    contestants = importlib.import_module("contestants").CONTESTANTS
    some = {name: make for name, make in contestants.items() if name.startswith(prefix)}
    assert some.keys() == part("rivals", contestants=some).facts["contestants"].keys() - {"plain"}


def test_all_are_written_to_a_folder(tmp_path, capsys):
    run, rows = importlib.import_module("run"), importlib.import_module("rows")
    facts = {"width": 4, "contestants": {"plain": {}, "fadeout": {"milliseconds added": [1.0, 2.0, 3.0]}}}
    tools = rows.Part("Other tools", "About.", [rows.Row("fadeout: time", [1.0, 2.0, 3.0], "ms")], facts)
    run.run({"growth": lambda: part("growth"), "rivals": lambda: tools}, tmp_path)
    assert "of 1 targets met" in capsys.readouterr().out
    written = json.loads((tmp_path / "bench.json").read_text())
    assert {"commit", "versions", "machine", "load"} < written.keys()
    assert written["parts"].keys() == {"growth", "rivals"}
    assert "### Growth" in (tmp_path / "bench.md").read_text()
    assert (tmp_path / "bench.svg").read_text().startswith("<?xml")


def test_reference_step_is_the_papers():
    """The same gradient as the pruner's own form of it."""
    import fadeout

    reference = importlib.import_module("reference")
    theirs = torch.nn.Parameter(torch.randn(20, 30))
    ours = torch.nn.Parameter(theirs.detach().clone())
    reference.reference_step([theirs], 0.7, 0.5)
    optimizer = torch.optim.SGD([ours], lr=0.0)
    model = torch.nn.ParameterList([ours])
    fadeout.SelectiveWeightDecay(
        model, optimizer, sparsity=0.7, steps=10, fade=fadeout.Decay(0.5, weight_decay=1.0)
    )
    ours.grad = torch.zeros_like(ours)
    optimizer.step()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_calls_take_turns():
    harness = importlib.import_module("harness")
    seen = []
    calls = {name: lambda name=name: seen.append(name) for name in "ab"}
    seconds = harness.take_turns(calls, 2, warm_up=1, before=lambda name: seen.append(f"before {name}"))
    assert seen == ["before a", "a", "before b", "b"] * 3
    assert [len(values) for values in seconds.values()] == [2, 2]


def test_the_peak_of_memory_is_exact():
    harness = importlib.import_module("harness")
    kept = []

    def prepare():
        torch.empty(9000)  # its own peak does not count
        kept.append(torch.empty(500))

    def call():
        first, second = torch.empty(1000), torch.empty(2000)
        del first, second
        kept.append(torch.empty(100))

    assert harness.peak_bytes(call, prepare) == 4 * 3500


def test_a_row_knows_its_target():
    rows = importlib.import_module("rows")
    assert rows.Row("a", [1, 2, 3], "x", at_most=2).met is True
    assert rows.Row("a", [0.01, 0.03, 0.05], "%", at_most=0.02).cells() == [
        "a",
        "3.00 %",
        "1.00 % to 5.00 %",
        "at most 2 %",
        "no",
    ]
    assert rows.Row("a", [1, 2, 3]).met is None


@pytest.mark.parametrize("name", ["harness", "rows", "reference", "stopwatch"])
def test_examples_in_docstrings(name):
    import doctest

    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.slow
@pytest.mark.parametrize("page", ["widths", "time_targets", "stored_bytes", "sparse_speed"])
def test_pages_of_speed(page, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    speed = importlib.import_module("speed")
    module = speed.PAGES[page]
    measure = module.measure
    monkeypatch.setattr(module, "measure", lambda: measure(**module.QUICK))
    speed.run(page, tmp_path)
    written = json.loads((tmp_path / f"speed-{page.replace('_', '-')}.json").read_text())
    assert written["rows"]
    assert f"speed.py {page}" in (tmp_path / f"speed-{page.replace('_', '-')}.md").read_text()


def test_the_figure_of_speed(tmp_path):
    rows = {
        "time-targets": [{"network": "ResNet-20, 64 maps", "engine": "pytorch", "asked": 2.0, "got": 1.9}],
        "widths": [
            {"network": "ResNet-20, 64 maps", "what": f"50%, {how}", "operations": 2.0}
            | {f"{engine}, 1 threads": 1.5 for engine in ("onnxruntime", "channels_last")}
            for how in ("any width", "multiples of 16", "Torch-Pruning, round_to=16")
        ],
    }
    for page, own in rows.items():
        (tmp_path / f"speed-{page}.json").write_text(json.dumps({"rows": own}))
    importlib.import_module("speed_figure").draw(tmp_path)
    shown = (tmp_path / "speed.svg").read_text()
    for text in ("got over asked", "in PyTorch", "ResNet-20", "0.75"):
        assert f"<!-- {text} -->" in shown or text in shown
