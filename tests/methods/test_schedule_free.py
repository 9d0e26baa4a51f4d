"""Schedule-free optimizers evaluate other weights than they step: zeros must be zeros in both."""

import copy

import pytest
import torch
from torch import nn

import fadeout
from fadeout.methods import GradualMagnitudePruning

schedulefree = pytest.importorskip("schedulefree")

STEPS, LEFT = 60, 7  # of the 72 weights of the network "matrices"
OPTIMIZERS = {
    "sgd": lambda p: schedulefree.SGDScheduleFree(p, lr=0.5),
    "adamw": lambda p: schedulefree.AdamWScheduleFree(p, lr=0.05),
    "radam": lambda p: schedulefree.RAdamScheduleFree(p, lr=0.05),
    "single": lambda p: schedulefree.AdamWScheduleFree(p, lr=0.05, foreach=False),
}
FADES = {
    "latent": fadeout.Latent(),
    "progressive": fadeout.Progressive(),
    "implicit": fadeout.Decay(1e6, weight_decay=0.1, mode="implicit"),
    "gradient": fadeout.Decay(1.0, weight_decay=0.1),
}


@pytest.fixture
def begin(make_task):
    def build(optimizer="adamw", fade="latent", sparsity=0.9):
        task = make_task("matrices")
        optimizer = OPTIMIZERS[optimizer](task.model.parameters())
        optimizer.train()
        pruner = fadeout.SelectiveWeightDecay(
            task.model, optimizer, sparsity=sparsity, steps=STEPS, fade=FADES[fade]
        )
        return task, optimizer, pruner

    return build


def left(model: nn.Module) -> int:
    return sum(int(parameter.count_nonzero()) for parameter in model.parameters())


@pytest.mark.filterwarnings("ignore:no weight is left")  # the wanted outputs are noise
@pytest.mark.parametrize("fade", FADES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_zeros_stay_zeros_in_both_modes(begin, train, name, fade):
    task, optimizer, pruner = begin(name, fade)
    train(task, optimizer, STEPS)
    if fade == "gradient":
        with pytest.warns(UserWarning, match="the fade was not complete"):
            masks = pruner.remove()
    else:
        masks = pruner.remove()
    assert masks.left == LEFT
    for mode in (optimizer.eval, optimizer.train, optimizer.eval):
        mode()
        assert left(task.model) == LEFT
        for key, parameter in task.model.named_parameters():
            assert torch.equal(parameter != 0, masks[key])


@pytest.mark.parametrize("fade", ["latent", "progressive"])
def test_removal_is_free_in_evaluation_mode(begin, train, snapshot, same_bits, fade):
    task, optimizer, pruner = begin(fade=fade)
    train(task, optimizer, STEPS)
    optimizer.eval()
    before = snapshot(task.model)
    assert left(task.model) == LEFT  # nothing of it is in the averaged weights any more
    pruner.remove()
    same_bits(snapshot(task.model), before)


def test_it_still_learns(begin, make_task, train):
    task, optimizer, pruner = begin("adamw", sparsity=0.5)
    target = make_task("matrices", seed=1).model

    def loss(step):
        inputs, _ = task.batch(step)
        return (task.model(inputs) - target(inputs)).square().mean()

    first = loss(0).item()
    train(task, optimizer, STEPS, loss=loss)
    pruner.remove()
    optimizer.eval()
    assert loss(0).item() < first / 2


@pytest.mark.parametrize("fade", ["latent", "progressive"])
@pytest.mark.parametrize("stop", [20, 40, 55])
def test_evaluation_in_between_and_a_resumption_change_nothing(begin, train, same_bits, fade, stop):
    def evaluate(optimizer):
        optimizer.eval()
        optimizer.train()

    task, optimizer, pruner = begin(fade=fade)
    train(task, optimizer, STEPS, after=lambda step: evaluate(optimizer))
    pruner.remove()

    first, its_optimizer, its_pruner = begin(fade=fade)
    train(first, its_optimizer, stop, after=lambda step: evaluate(its_optimizer) if step + 1 < stop else None)
    its_optimizer.eval()  # as its authors advise for checkpoints
    parts = (first.model, its_optimizer, its_pruner)
    saved = [copy.deepcopy(part.state_dict()) for part in parts]
    second, new_optimizer, new_pruner = begin(fade=fade)
    for part, state in zip((second.model, new_optimizer, new_pruner), saved, strict=True):
        part.load_state_dict(state)
    new_optimizer.train()
    train(second, new_optimizer, STEPS, start=stop, after=lambda step: evaluate(new_optimizer))
    new_pruner.remove()
    same_bits(second.model, task.model)


def test_an_evaluation_does_not_shrink_latents(begin, train, close):
    """Its rounding is no write of the user's, which would replace latents by what the network runs on."""
    (one, plain, _), (other, evaluated, _) = begin(), begin()
    train(one, plain, 40)
    train(other, evaluated, 40, after=lambda step: (evaluated.eval(), evaluated.train()))
    close(one.model, other.model, rtol=1e-9)


def test_held_masks(begin, train):
    task, optimizer, pruner = begin()
    train(task, optimizer, STEPS)
    masks = pruner.remove()
    held = masks.hold(task.model, optimizer)
    train(task, optimizer, 5)
    optimizer.eval()
    assert left(task.model) == LEFT
    held.remove()


def test_masks_of_an_earlier_training_are_held(make_task, train):
    task = make_task("matrices")
    optimizer = OPTIMIZERS["adamw"](task.model.parameters())
    optimizer.train()
    train(task, optimizer, 5)
    masks = fadeout.methods.one_shot(task.model, 0.9)
    masks.hold(task.model, optimizer)
    optimizer.eval()
    assert left(task.model) == LEFT


def test_gradual_magnitude_pruning(make_task, train):
    task = make_task("matrices")
    optimizer = OPTIMIZERS["sgd"](task.model.parameters())
    optimizer.train()
    GradualMagnitudePruning(task.model, optimizer, sparsity=0.9, steps=STEPS)
    train(task, optimizer, STEPS)
    optimizer.eval()
    assert left(task.model) == LEFT


def test_a_wrapper_that_is_no_optimizer(make_task):
    task = make_task("matrices")
    base = torch.optim.SGD(task.model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"has no step hooks: take schedulefree.AdamWScheduleFree"):
        fadeout.SelectiveWeightDecay(
            task.model, schedulefree.ScheduleFreeWrapper(base), sparsity=0.9, steps=STEPS
        )
