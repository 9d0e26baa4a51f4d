"""AC/DC: sparse and dense phases by turns, each sparse one with a mask of its own; the last one stays."""

import pytest
import torch

from fadeout import Channels
from fadeout.experiments.run import Run
from fadeout.methods import ACDC

# in hundredths of the training, as published: of 200 epochs on CIFAR, of 100 on ImageNet
COMPRESSED = {
    "cifar": [(5, 15), (25, 35), (45, 55), (65, 75), (85, 100)],
    "imagenet": [(10, 15), (20, 25), (30, 35), (40, 45), (50, 55), (60, 65), (70, 75), (85, 100)],
}


@pytest.fixture
def zeros_of(bare, push):
    """Where the weights are zero after each step, with gradients at random."""

    def go(steps, **arguments):
        model = bare(a=torch.randn(6, 8), b=torch.randn(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        pruner = ACDC(model, optimizer, sparsity=0.75, steps=steps, **arguments)
        seen = []
        for _ in range(steps):
            push(model, optimizer, a=torch.randn(6, 8), b=torch.randn(8, 3))
            seen.append(torch.cat([p.detach().flatten() == 0 for p in model.parameters()]))
        return pruner, seen

    return go


@pytest.mark.parametrize("steps", [100, 300])
@pytest.mark.parametrize("phases", COMPRESSED)
def test_the_phases_are_those_of_the_paper(zeros_of, steps, phases):
    _, seen = zeros_of(steps, phases=phases)
    for number, zeros in enumerate(seen, start=1):
        # at the end of a phase the weights that were held are still zero: the next step moves them
        sparse = any(first <= 100 * number / steps <= last for first, last in COMPRESSED[phases])
        assert int(zeros.sum()) == (54 if sparse else 0), number  # of 6 * 8 + 8 * 3 weights


@pytest.mark.parametrize(
    ("data", "phases"), [("mnist", "cifar"), ("cifar10", "cifar"), ("imagenet", "imagenet")]
)
@pytest.mark.parametrize("method", ["acdc", "acdc_lamp"])
def test_small_images_have_the_phases_of_cifar(method, data, phases):
    (phase,) = Run(method=method, data=data).phases()
    assert phase.pruner.keywords["phases"] == phases


def test_the_mask_is_held_in_a_phase_and_chosen_anew_in_the_next(zeros_of):
    pruner, seen = zeros_of(100)
    for first, last in ((5, 15), (85, 100)):
        assert all(torch.equal(seen[first - 1], seen[n - 1]) for n in range(first, last + 1))
    assert not torch.equal(seen[4], seen[84])
    kept = torch.cat([mask.flatten() for mask in pruner.masks().values()])
    assert torch.equal(~kept, seen[-1])
    assert pruner.fade == 0
    assert pruner.remove().left == 18


def test_compression_takes_the_lowest_of_the_whole_network(bare, push):
    model = bare(a=[[1.0, 8.0], [3.0, 4.0]], b=[[5.0, -2.0], [7.0, 6.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ACDC(model, optimizer, sparsity=0.5, steps=40)
    push(model, optimizer)
    assert model.a.all()
    push(model, optimizer)
    assert model.a.tolist() == [[0, 8], [0, 0]]
    assert model.b.tolist() == [[5, 0], [7, 6]]


@pytest.mark.parametrize(
    ("build", "average"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "momentum_buffer"),
        (lambda p: torch.optim.AdamW(p, lr=0.1), "exp_avg"),
    ],
)
def test_momentum_begins_anew_when_the_network_is_dense_again(bare, push, build, average):
    """In 20 steps of ImageNet the network is sparse after step 2, free after 3, sparse after 4."""
    model = bare(w=[[1.0, 9.0]], bias=[1.0])
    optimizer = build(model.parameters())
    pruner = ACDC(model, optimizer, sparsity=0.5, steps=20, phases="imagenet")
    momentum = []
    for _ in range(4):
        push(model, optimizer, w=[[1.0, 1.0]], bias=[1.0])
        state = optimizer.state
        momentum.append([state[p][average].flatten().tolist() for p in (model.w, model.bias)])
    assert all(all(value) for value in momentum[0] + momentum[1])
    assert momentum[2] == [[0, 0], [0]]
    assert pruner.sparsity_now == 0.5
    assert model.w[0, 0] == 0


def test_held_weights_have_no_gradient(bare, push):
    model = bare(w=[[1.0, 9.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    ACDC(model, optimizer, sparsity=0.5, steps=100)
    for _ in range(10):
        push(model, optimizer)
    push(model, optimizer, w=[[4.0, 4.0]])
    assert model.w.grad.tolist() == [[0, 4]]
    assert optimizer.state[model.w]["momentum_buffer"].tolist() == [[0, 4]]


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 11, 19])
def test_however_few_steps_there_are_it_ends_sparse(make_task, train, steps):
    task = make_task("mlp")
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.1, momentum=0.9)
    pruner = ACDC(task.model, optimizer, sparsity=0.75, steps=steps)
    train(task, optimizer, steps)
    assert pruner.fade == 0
    assert pruner.remove().left == 18


def test_a_sparse_gradient(make_task, train):
    task = make_task("embedding")
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.1)
    pruner = ACDC(task.model, optimizer, sparsity=0.5, steps=40)
    train(task, optimizer, 40)
    assert int((task.model.weight == 0).sum()) == pruner.remove().left == 15


def test_whole_channels(make_task, train):
    task = make_task("conv")
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.05, momentum=0.9)
    structure = Channels(torch.zeros(1, 1, 5, 5).double())
    pruner = ACDC(task.model, optimizer, sparsity=0.4, steps=40, structure=structure)
    train(task, optimizer, 40)
    assert pruner.fade == 0
    assert int((task.model[1].weight == 0).sum()) > 0
