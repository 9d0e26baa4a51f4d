"""The training loop, and every method end to end on real data."""

import copy
import os
from dataclasses import replace

import pytest
import torch
from torch import nn

import fadeout
from fadeout.experiments.data import digits, mnist
from fadeout.experiments.training import evaluate, in_thirds, train
from fadeout.methods import GradualMagnitudePruning, iterative, one_shot


def accuracy(model, x, y, batch_size=1000):
    return evaluate(model, zip(x.split(batch_size), y.split(batch_size), strict=True)).top1


def start(seed=0):
    torch.manual_seed(seed)
    model = fadeout.models.smallcnn()
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def test_it_learns_and_reports_every_step():
    data, seen = digits(), []
    model, optimizer = start()
    pruner = fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=36)
    train(model, optimizer, data, epochs=2, batch_size=64, seed=0, on_step=seen.append)
    assert [(now.epoch, now.step) for now in seen] == [(e, s) for e in range(2) for s in range(18)]
    assert seen[0].loss > 2
    assert seen[-1].loss < 1
    assert (pruner.progress, pruner.sparsity_now, pruner.factor_now) == (1.0, 0.5, 0.0)
    assert accuracy(model, data.test_x, data.test_y) > 60


def test_one_seed_gives_one_result_whatever_ran_before(same_bits):
    data = digits()
    (one, first), (other, second) = start(), start()
    train(one, first, data, epochs=1, batch_size=64, seed=3)
    torch.rand(7)
    train(other, second, data, epochs=1, batch_size=64, seed=3)
    same_bits(one, other)


def test_training_that_goes_on_equals_training_in_one_go(same_bits):
    data = digits()
    (one, first), (other, second) = start(), start()
    train(one, first, data, epochs=2, batch_size=64, seed=0)
    train(other, second, data, epochs=1, batch_size=64, seed=0)
    train(other, second, data, epochs=1, batch_size=64, seed=0, first_epoch=1)
    same_bits(one, other)


def test_the_learning_rate_falls_in_thirds():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, rates = in_thirds(optimizer, 9), []
    for _ in range(9):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01])


def test_accuracy_counts_and_leaves_the_mode():
    scores = torch.tensor([[2.0, 1.0], [0.0, 1.0], [5.0, 0.0], [3.0, 1.0]])
    model = nn.Sequential(nn.Dropout(0.9), nn.Identity())  # dropout would show in training mode
    assert accuracy(model, scores, torch.tensor([0, 1, 0, 1]), batch_size=3) == 75.0
    assert model.training
    assert all(module.training for module in model)


# Real data ------------------------------------------------------------------------------------------

EPOCHS, BATCH = 2, 128
needs_data = pytest.mark.skipif(
    not os.environ.get("FADEOUT_DATA"), reason="set FADEOUT_DATA to the folder that holds MNIST/raw/*.gz"
)


@pytest.fixture(scope="module")
def data():
    return mnist()


def lenet(seed=0):
    torch.manual_seed(seed)
    model = fadeout.models.lenet5()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.fixture(scope="module")
def dense(data):
    """LeNet-5 after two epochs, with its optimizer and its accuracy."""
    model, optimizer = lenet()
    train(model, optimizer, data, epochs=EPOCHS, batch_size=BATCH, seed=0)
    return model, optimizer, accuracy(model, data.test_x, data.test_y)


def zeros(model):
    """How many of the prunable weights are exactly zero, and how many there are."""
    weights = [p for p in model.parameters() if p.dim() >= 2]
    return sum(int((w == 0).sum()) for w in weights), sum(w.numel() for w in weights)


@pytest.mark.slow
@needs_data
def test_mnist_dense(dense):
    assert dense[-1] > 98


@pytest.mark.slow
@needs_data
def test_mnist_one_shot(data, dense):
    model, _, before = copy.deepcopy(dense)
    masks = one_shot(model, 0.9)
    gone, total = zeros(model)
    assert gone == round(0.9 * total) == total - masks.left
    assert before - accuracy(model, data.test_x, data.test_y) > 1  # what the other methods avoid


@pytest.mark.slow
@needs_data
def test_mnist_iterative(data, dense):
    model, optimizer, _ = copy.deepcopy(dense)  # one copy: the optimizer holds the new model

    subset = replace(data, train_x=data.train_x[:12_000], train_y=data.train_y[:12_000])

    def fine_tune(number):
        train(model, optimizer, subset, epochs=1, batch_size=BATCH, seed=0, first_epoch=number)

    masks = iterative(model, optimizer, fine_tune, sparsity=0.9)
    gone, total = zeros(model)
    assert gone == round(0.9 * total) == total - masks.left
    assert accuracy(model, data.test_x, data.test_y) > 97


def decay(strength, mode):
    return fadeout.Decay(fadeout.schedules.exponential(0.1, strength), weight_decay=5e-4, mode=mode)


@pytest.mark.slow
@needs_data
@pytest.mark.filterwarnings(r"ignore:remove\(\) after step 936 of 936")  # two epochs are short for Decay
@pytest.mark.parametrize(
    ("method", "options", "least", "change"),
    [
        pytest.param(fadeout.SelectiveWeightDecay, {}, 97.5, 0.01, id="fadeout"),
        pytest.param(GradualMagnitudePruning, {}, 97.5, 0.01, id="gmp"),
        pytest.param(
            fadeout.SelectiveWeightDecay, {"fade": decay(1e4, "gradient")}, 96, 1, id="decay-gradient"
        ),
        pytest.param(
            fadeout.SelectiveWeightDecay, {"fade": decay(1e5, "implicit")}, 96, 0.5, id="decay-implicit"
        ),
    ],
)
def test_mnist_pruned_while_training(data, method, options, least, change):
    model, optimizer = lenet()
    steps = EPOCHS * data.steps(BATCH)
    pruner = method(model, optimizer, sparsity=0.9, steps=steps, **options)
    train(model, optimizer, data, epochs=EPOCHS, batch_size=BATCH, seed=0)
    before = accuracy(model, data.test_x, data.test_y)
    masks = pruner.remove()
    after = accuracy(model, data.test_x, data.test_y)
    gone, total = zeros(model)
    assert gone == round(0.9 * total) == total - masks.left
    assert after > least
    assert abs(after - before) < change
