"""DepGraph: Torch-Pruning's groups, penalty and order, and an exact target in parameters."""

import copy
import sys

import pytest
import torch
import torch.nn.functional as F
from support.helpers import size
from support.structured import IMAGE, Residual, chain, scatter

import fadeout
from fadeout import Channels
from fadeout._checks import MissingExtraError
from fadeout.methods.external.depgraph import DepGraph

STEPS = 20  # the penalty acts in ten of them, then channels go


@pytest.fixture
def tp():
    return pytest.importorskip("torch_pruning")


def build(model, sparsity=0.5, image=IMAGE, lr=0.1):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return optimizer, DepGraph(model, optimizer, sparsity=sparsity, steps=STEPS, structure=Channels(image))


def push(model, optimizer, steps):
    """Steps whose gradients are zero but for the penalty."""
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()


def gone(masks, *names):
    return [(~masks[name]).nonzero().flatten().tolist() for name in names]


def test_the_penalty_by_hand(tp):
    """Two filters of norms 1 and 3, whose scales and readers are zero."""
    model = torch.nn.Sequential(
        *(torch.nn.Conv2d(1, 2, 1, bias=False), torch.nn.BatchNorm2d(2)),
        torch.nn.Conv2d(2, 1, 1, bias=False),
    ).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([1.0, 3.0]).view(2, 1, 1, 1))
        model[1].weight.zero_()
        model[2].weight.zero_()
    optimizer, pruner = build(model, 0.3, torch.zeros(1, 1, 2, 2).double(), lr=1.0)
    assert pruner.penalty_now == 5e-4
    push(model, optimizer, 1)
    # the lowest feels lambda 2^4 w, the highest lambda w
    assert model[0].weight.flatten().tolist() == pytest.approx([1 - 5e-4 * 16, 3 - 5e-4 * 3])
    push(model, optimizer, 9)
    assert pruner.penalty_now == 0.0
    assert model[0].weight.flatten()[0] == 0.0
    assert model[0].weight.flatten()[1].item() == pytest.approx(3 * (1 - 5e-4) ** 10)


def test_what_an_addition_joins_goes_together(tp):
    torch.manual_seed(0)
    model = scatter(Residual())
    with torch.no_grad():  # channel 4 of the stem and of the block are small, as is channel 1 inside of it
        for norm, channel in ((model.bn1, 4), (model.bn3, 4), (model.bn2, 1)):
            norm.weight[channel] = 0.01
        for layer, channel in ((model.conv1, 4), (model.conv3, 4), (model.conv2, 1)):
            layer.weight[channel] = 0.01
        for layer, channel in ((model.conv2, 4), (model.fc, 4), (model.conv3, 1)):
            layer.weight[:, channel] = 0.01
    _, pruner = build(model, sparsity=0.25)
    assert gone(pruner.masks(), "bn1.weight", "bn3.weight", "bn2.weight") == [[4], [4], [1]]
    _, pruner = build(copy.deepcopy(model), sparsity=0.8)
    stem, block, inside = gone(pruner.masks(), "bn1.weight", "bn3.weight", "bn2.weight")
    assert stem == block
    assert 0 < len(stem) < 6
    assert 0 < len(inside) < 6


@pytest.mark.parametrize("make", [chain, Residual, lambda: fadeout.models.resnet20(width=4)])
def test_the_order_is_torch_prunings_own(tp, make):
    """It prunes as many channels, by its own global ranking, of a copy."""
    torch.manual_seed(0)
    model = scatter(make())
    pruner = build(model)[1]
    masks, image = pruner.masks(), IMAGE
    theirs = copy.deepcopy(model).eval()
    found = tp.pruner.GroupNormPruner(
        theirs,
        image,
        importance=tp.importance.GroupMagnitudeImportance(p=2, normalizer="max"),
        global_pruning=True,
        ignored_layers=[theirs.fc if hasattr(theirs, "fc") else theirs[-1]],
    )
    groups = pruner._find()[1]
    lost = sum(int((~masks[_first(pruner, members)]).sum()) for _, members in groups)
    found.per_step_pruning_ratio = [0.0, (lost - 0.5) / sum(len(group[0].idxs) for group, _ in groups)]
    found.step()
    for name, parameter in theirs.named_parameters():
        if name in masks and parameter.dim() == 1:
            assert len(parameter) == int(masks[name].sum()), name
            assert torch.equal(parameter, model.get_parameter(name)[masks[name]]), name
    pruner._set_to_zero({name: ~mask for name, mask in masks.items()})
    assert size(fadeout.compact(model.eval(), image)) == size(theirs)


def _first(pruner, members):
    layer = pruner._bound.layers[members[0][0]]
    return next(name for name in layer.fading if pruner.parameters[name].dim() == 1)


@pytest.mark.parametrize(
    ("make", "image"),
    [
        (lambda: fadeout.models.resnet20(width=8), torch.zeros(1, 3, 16, 16)),
        (lambda: fadeout.models.smallcnn(norm=False), torch.zeros(1, 1, 8, 8)),
    ],
    ids=["resnet20", "no norms"],
)
def test_the_target_is_met_by_what_compaction_leaves(tp, make, image):
    torch.manual_seed(0)
    model = make().to(memory_format=torch.channels_last)
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    optimizer, pruner = build(model, 0.5, image)
    assert model.training
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())  # nothing has run
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(8, *image.shape[1:])), torch.arange(8) % 10).backward()
        optimizer.step()
    assert pruner.fade == 0
    pruner.remove()
    left = size(fadeout.compact(model.eval(), image)) / size(model)
    assert 0.47 < left <= 0.5


def test_without_torch_pruning_it_says_what_to_install(monkeypatch, hooks_on):
    monkeypatch.setitem(sys.modules, "torch_pruning", None)
    model = chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(
        MissingExtraError, match=r'torch_pruning is not installed: pip install "fadeout\[bench\]"'
    ):
        DepGraph(model, optimizer, sparsity=0.5, steps=10, structure=Channels(IMAGE))
    assert hooks_on(optimizer) == 0
