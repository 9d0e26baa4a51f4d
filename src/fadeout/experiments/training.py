"""The one training loop, plain and visible, for all tasks: images and graphs alike."""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, MultiStepLR

from fadeout.experiments.data.cora import Graph
from fadeout.experiments.data.dataset import IGNORED, Dataset
from fadeout.experiments.distributed import ALONE, World


class Step(NamedTuple):
    """What ``on_step`` gets: the numbers of epoch and step, and the loss, still on its device."""

    epoch: int
    step: int
    loss: Tensor


def train(
    model: nn.Module,
    optimizer: Optimizer,
    data: Dataset | Graph,
    *,
    epochs: int,
    batch_size: int,
    seed: int,
    first_epoch: int = 0,
    first_step: int = 0,
    steps: int | None = None,
    scheduler: LRScheduler | None = None,
    device: torch.device | str = "cpu",
    bfloat16: bool = False,
    on_epoch: Callable[[int], object] | None = None,
    on_step: Callable[[Step], object] | None = None,
    world: World = ALONE,
) -> None:
    """Train a classifier. A pruner acts by itself: it is attached to the optimizer.

    Args:
        data: the training data, seen in an order that depends on ``seed`` alone. Inputs are a tensor, or a
            tuple of what the network takes; labels of -100 are left out of loss and accuracy.
        epochs, batch_size: how long, and in batches of how many.
        seed: of the order of the data, and of what is random in the network. Both depend on seed, epoch and
            step alone, so training that is resumed sees the same.
        first_epoch: its number: training that goes on, to fine-tune or to resume, sees the data in an order
            that it has not seen.
        first_step: of the first epoch, where it is resumed in the middle.
        steps: at most so many in an epoch, for a trial; by default all that the data give.
        scheduler: of the learning rate; stepped after every optimizer step.
        bfloat16: compute in mixed precision (``torch.autocast``); weights and their gradients stay float32.
        on_epoch: called with the number of each epoch before its first step.
        world: the processes that train together, each of which takes its share of every batch; the model
            is what ``world.wrap`` made.
    """
    if str(device) == "cpu" and world.size == 1:
        model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]  # faster convolutions
    model.train()
    for epoch in range(first_epoch, first_epoch + epochs):
        if on_epoch is not None and first_step == 0:
            on_epoch(epoch)
            model.train()
        batches = data.batches(batch_size, epoch=epoch, seed=seed, first=first_step)
        for step, batch in enumerate(batches, first_step):
            if step == steps:
                break
            x, y, weight, number = world.share(*batch)
            torch.manual_seed(((seed * 10_007 + epoch) * 1_000_003 + step + number * 2**40) % 2**63)
            optimizer.zero_grad()
            with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=bfloat16):
                loss = F.cross_entropy(predict(model, x, device), y.to(device))
            (weight * loss).backward()
            optimizer.step()
            loss = world.average(model, loss.detach(), weight)
            if scheduler is not None:
                scheduler.step()
            if on_step is not None:
                on_step(Step(epoch, step, loss))
        first_step = 0


def predict(model: nn.Module, x: Any, device: torch.device | str = "cpu") -> Tensor:
    """The network's outputs for one input, or for a tuple of them."""
    return model(*(part.to(device) for part in x)) if isinstance(x, tuple) else model(x.to(device))


# Learning rates -------------------------------------------------------------------------------------------


def in_thirds(optimizer: Optimizer, steps: int) -> LRScheduler:
    """The paper's learning rates: the base for a third of the steps, then a tenth, then a hundredth of it."""
    return MultiStepLR(optimizer, [steps // 3, 2 * steps // 3])


def constant(optimizer: Optimizer, steps: int) -> LRScheduler:
    """The base throughout."""
    return LambdaLR(optimizer, lambda step: 1.0)


def cosine(optimizer: Optimizer, steps: int) -> LRScheduler:
    """From the base to a hundredth of it, along half a period of the cosine."""
    return LambdaLR(optimizer, lambda s: 0.01 + 0.99 * (1 + math.cos(math.pi * min(s / steps, 1))) / 2)


def cosine_to_zero(optimizer: Optimizer, steps: int) -> LRScheduler:
    """From the base to zero, along half a period of the cosine."""
    return LambdaLR(optimizer, lambda s: (1 + math.cos(math.pi * min(s / steps, 1))) / 2)


def restarts(optimizer: Optimizer, steps: int) -> LRScheduler:
    """A warm restart: the thirds twice, each in half of the steps. The last rate stays after the end."""

    def factor(step: int) -> float:
        half = max(steps // 2, 1)
        place = min(step, steps - 1) % half if step < 2 * half else half - 1
        return 0.1 ** min(3 * place // half, 2)

    return LambdaLR(optimizer, factor)


LEARNING_RATES: dict[str, Callable[[Optimizer, int], LRScheduler]] = {
    "thirds": in_thirds,
    "constant": constant,
    "cosine": cosine,
    "cosine_to_zero": cosine_to_zero,
    "restarts": restarts,
}


# Accuracy -------------------------------------------------------------------------------------------------


class Accuracy(NamedTuple):
    """In percent: the right class is the network's first choice, or among its first five."""

    top1: float
    top5: float


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Any, Tensor]],
    device: torch.device | str = "cpu",
    world: World = ALONE,
) -> Accuracy:
    """Accuracy over batches of (inputs, labels), in evaluation mode; the model's mode is left as it was.

    With five classes or fewer, the top-5 accuracy is 100. Several processes share the batches out.
    """
    training, first, five, count = model.training, 0, 0, 0
    model.eval()
    for batch in batches:
        x, y, weight, _ = world.share(*batch)
        outputs, y = predict(model, x, device), y.to(device)
        if weight == 0:  # it was there for the others' sake
            continue
        outputs, y = outputs[y != IGNORED], y[y != IGNORED]
        right = outputs.topk(min(5, outputs.shape[1])).indices == y.unsqueeze(1)
        first += int(right[:, 0].sum())
        five += int(right.sum())
        count += len(y)
    model.train(training)
    first, five, count = world.total(first, five, count)
    return Accuracy(100 * first / count, 100 * five / count)
