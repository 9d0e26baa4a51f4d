"""The figures show the numbers that they were given; what they cannot show they say."""

import json

import pytest
import torch
from torch import nn

from fadeout import Masks, NoPruning, SelectiveWeightDecay, cli, criteria, plot

pytest.importorskip("matplotlib").use("agg")


@pytest.fixture(autouse=True)
def _close():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = SelectiveWeightDecay(model, optimizer, sparsity=0.9, steps=40, criterion=criteria.lamp)
    history = plot.History(pruner)
    for step in range(40):
        optimizer.zero_grad()
        model(torch.randn(16, 20)).square().mean().backward()
        optimizer.step()
        if step % 10 == 9:
            history.note()
    return model, pruner, history, pruner.remove()


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_layers_by_hand():
    masks = Masks({"a": torch.tensor([True, False, False, False]), "b": torch.tensor([True, True])})
    axes = plot.layers(masks)
    assert [patch.get_width() for patch in axes.patches] == [25.0, 100.0]
    assert texts(axes) == ["25 %, 1", "100 %, 2"]
    assert axes.get_xlabel() == "weights left, %; in all 50 %, 3 of 6"


def test_layers_of_a_network_are_those_of_its_masks(trained):
    model, _, _, masks = trained
    assert texts(plot.layers(model)) == texts(plot.layers(masks))


def test_fading_has_a_row_for_each_note(trained):
    axes = plot.fading(trained[2])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0%", "25%", "50%", "75%", "100%"]
    assert "90 % have faded away" in texts(axes)


def test_decided_ends_with_the_whole_set(trained):
    (line,) = plot.decided(trained[2]).lines
    assert list(line.get_xdata()) == [0, 25, 50, 75, 100]
    assert line.get_ydata()[-1] == 100 > line.get_ydata()[0]


def test_decided_of_a_run(tmp_path):
    run = {"method": "auto", "sparsity": 0.9, "seed": 0}
    (tmp_path / "result.json").write_text(json.dumps({"run": run, "overlap": [[0.5, 0.4], [1.0, 1.0]]}))
    (line,) = plot.decided(tmp_path).lines
    assert list(line.get_ydata()) == [40.0, 100.0]


def test_of_a_run(tmp_path):
    cli.main(["run", "digits", "--epochs", "2", "--steps", "5", "--results", str(tmp_path)])
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert "3,816 of 38,160" in plot.layers(folder).get_xlabel()
    assert plot.decided(folder).lines[0].get_ydata()[-1] == 100


def record(hash, **run):
    after = run.pop("after")
    settings = {"model": "lenet5", "width": None, "data": "mnist", "structure": "elements", "seed": 0} | run
    return {"version": 1, "hash": hash, "status": "done", "run": settings, "after": after}


def test_accuracy_is_the_mean_over_seeds(tmp_path):
    records = [
        record("a0", method="auto", sparsity=0.9, after=98.0),
        record("a1", method="auto", sparsity=0.9, after=96.0, seed=1),
        record("a2", method="auto", sparsity=0.5, after=99.0),
        record("a3", method="dense", sparsity=0.0, after=99.5),
    ]
    (tmp_path / "some.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    dense, line = plot.accuracy(tmp_path / "some.jsonl").lines
    assert set(dense.get_ydata()) == {99.5}
    assert list(line.get_xdata()) == [0.5, 0.1]
    assert list(line.get_ydata()) == [99.0, 97.0]


def test_accuracy_of_numbers():
    axes = plot.accuracy({"mine": {0.1: 50.0, 0.5: 60.0}})
    assert list(axes.lines[0].get_ydata()) == [60.0, 50.0]
    assert axes.get_xlim()[0] > axes.get_xlim()[1]  # less and less is left


def test_axes_are_drawn_into():
    import matplotlib.pyplot as plt

    _, axes = plt.subplots()
    assert plot.layers({"a": torch.ones(2, 2, dtype=torch.bool)}, axes=axes) is axes


def test_layers_of_which_nothing_is_left():
    assert texts(plot.layers({"a": torch.zeros(2, 2, dtype=torch.bool)})) == ["0 %, 0"]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda path, pruner: plot.layers({}), r"nothing to draw: no parameter of \{\} has a mask"),
        (lambda path, pruner: plot.layers(NoPruning()), "nothing to draw: no parameter of a NoPruning"),
        (lambda path, pruner: plot.History(NoPruning()), "nothing to note: NoPruning has no masks"),
        (lambda path, pruner: plot.layers(path), "no folder of a run"),
        (lambda path, pruner: plot.decided(plot.History(pruner)), "has one note"),
        (lambda path, pruner: plot.fading(plot.History(pruner)), "has one note"),
        (lambda path, pruner: plot.decided(path / "none"), "there is no"),
        (lambda path, pruner: plot.accuracy(path / "two.jsonl"), "2 setups"),
        (lambda path, pruner: plot.fading(path / "empty.json"), "no 'fading'"),
        (lambda path, pruner: plot.fading(path / "broken.json"), "cannot be read"),
    ],
)
def test_what_cannot_be_shown(tmp_path, trained, call, says):
    two = [
        record("b0", method="auto", sparsity=0.5, after=1.0),
        record("b1", method="auto", sparsity=0.5, after=1.0),
    ]
    two[1]["run"]["data"] = "cora"
    (tmp_path / "two.jsonl").write_text("".join(json.dumps(each) + "\n" for each in two))
    (tmp_path / "empty.json").write_text("{}")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ValueError, match=says):
        call(tmp_path, trained[1])


def test_without_matplotlib_the_extra_is_named(fresh):
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import torch; from fadeout import plot\n"
        "plot.layers({'a': torch.ones(2, 2, dtype=torch.bool)})"
    )
    assert 'matplotlib is not installed: pip install "fadeout[plot]"' in fresh(code).stderr


@pytest.mark.parametrize("source", [{}, {"fadeout": {}}])
def test_no_accuracy_at_all_is_refused(source):
    with pytest.raises(ValueError, match="nothing to draw"):
        plot.accuracy(source)
