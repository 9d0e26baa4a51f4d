"""What a pruner says of itself: in a few lines, by parameter, and in a notebook."""

import math

import pytest
import torch
from torch import nn

import fadeout
from fadeout.methods import GradualMagnitudePruning


@pytest.fixture
def pruner(bare):
    model = bare(first=[[3.0, 4.0]], last=[[1.0, 2.0], [0.5, 0.0]], bias=[1.0, 1.0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return GradualMagnitudePruning(model, optimizer, sparsity=0.5, steps=10)


def test_repr(pruner):
    assert repr(pruner).splitlines() == [
        "GradualMagnitudePruning",
        "  target     50 % to go, 0 % now",
        "  prunes     6 weights of 2 parameters, 75 % of the model's",
        "  structure  Elements(scope='network')",
        "  criterion  magnitude",
        "  progress   step 0 of 10",
    ]
    pruner.detach()
    assert repr(pruner).splitlines()[-1] == "  progress   step 0 of 10, detached from the optimizer"


def test_repr_of_channels():
    model = fadeout.models.smallcnn(norm=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    structure = fadeout.Channels(torch.zeros(1, 1, 8, 8))
    pruner = fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=10, structure=structure)
    assert "  prunes     112 channels of 3 layers\n" in repr(pruner)
    assert "  fade       Progressive()\n" in repr(pruner)


def test_summary(pruner):
    """Of six weights 0, 0.5 and 1 would go: the norm of these is sqrt(1.25), that of the rest of last 2."""
    found = pruner.summary()
    assert [(row.name, row.weights, row.left) for row in found.rows] == [("first", 2, 2), ("last", 4, 1)]
    assert [row.fade for row in found.rows] == [0.0, pytest.approx(math.sqrt(1.25) / 2)]
    assert (found.total.weights, found.total.left) == (6, 3)
    assert found.total.fade == pytest.approx(pruner.fade)
    assert str(found).splitlines()[0].split() == ["parameter", "weights", "left", "share", "fade"]


def test_notebooks_get_tables(pruner):
    for one in (pruner, pruner.summary(), pruner.masks()):
        html = one._repr_html_()
        assert html.startswith("<table>")
        assert html.count("<tr>") == html.count("</tr>") > 2


def test_names_are_escaped():
    masks = fadeout.Masks({"<b>": torch.ones(2, dtype=torch.bool)})
    assert "&lt;b&gt;" in masks._repr_html_()


def test_a_constructor_that_fails_leaves_no_hook(hooks_on):
    class Fails(GradualMagnitudePruning):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            raise ValueError("at the very end")

    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="at the very end"):
        Fails(model, optimizer, sparsity=0.5, steps=10)
    assert hooks_on(optimizer) == 0
    GradualMagnitudePruning(model, optimizer, sparsity=0.5, steps=10)


def test_a_target_of_no_weight_is_refused():
    model = nn.Linear(10, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"sparsity=0\.001 of 100 weights is not even one"):
        GradualMagnitudePruning(model, optimizer, sparsity=0.001, steps=10)
    with pytest.raises(ValueError, match="not even one"):
        fadeout.methods.one_shot(model, 0.001)


def test_a_target_of_all_weights_is_refused():
    model = nn.Linear(10, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"sparsity=0\.999 of 100 weights is all of them"):
        GradualMagnitudePruning(model, optimizer, sparsity=0.999, steps=10)
    with pytest.raises(ValueError, match="all of them"):
        fadeout.methods.one_shot(model, 0.999, structure=fadeout.Elements(scope="layer"))
    GradualMagnitudePruning(model, optimizer, sparsity=0.99, steps=10)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda p: p.to(torch.float8_e4m3fn), "of type float8_e4m3fn"),
        (lambda p: p.to_sparse(), "sparse"),
        (lambda p: p.to("meta"), "on the meta device"),
        (lambda p: torch.nested.as_nested_tensor([p, p[:2]], layout=torch.jagged), "nested"),
    ],
    ids=["float8", "sparse", "meta", "nested"],
)
def test_weights_that_cannot_be_pruned_are_refused(change, word, hooks_on):
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(change(model.weight.detach()))
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    with pytest.raises(ValueError, match=f"'weight' is {word}.* prunable="):
        fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=10)
    assert hooks_on(optimizer) == 0
