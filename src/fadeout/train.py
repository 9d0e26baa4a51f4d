"""The one training loop, plain and visible."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, MultiStepLR

from fadeout.data.dataset import Dataset
from fadeout.methods.dense import NoPruning


def train(
    model: nn.Module,
    optimizer: Optimizer,
    data: Dataset,
    *,
    epochs: int,
    batch_size: int,
    seed: int,
    first_epoch: int = 0,
    scheduler: LRScheduler | None = None,
    pruner: Any = None,
    on_step: Callable[[dict[str, Any]], object] | None = None,
) -> None:
    """Train a classifier.

    Args:
        model, optimizer: the network and what trains it; a pruner is already attached to the optimizer.
        data: the training data, seen in an order that depends on ``seed`` alone.
        epochs, batch_size: how long, and in batches of how many.
        seed: of the order of the data, and of what is random in the network.
        first_epoch: its number: training that goes on, to fine-tune or to resume, sees the data in an order
            that it has not seen.
        scheduler: of the learning rate; stepped after every optimizer step.
        pruner: read for the figures that ``on_step`` gets.
        on_step: called after every step with epoch, step, loss, and the pruner's progress, sparsity and
            factor.
    """
    pruner = NoPruning() if pruner is None else pruner
    model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]  # faster convolutions
    model.train()
    for epoch in range(first_epoch, first_epoch + epochs):
        torch.manual_seed(seed * 10_007 + epoch)
        for step, (x, y) in enumerate(data.batches(batch_size, epoch=epoch, seed=seed)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            if on_step is not None:
                on_step(
                    {
                        "epoch": epoch,
                        "step": step,
                        "loss": loss.item(),
                        "progress": pruner.progress,
                        "sparsity": pruner.sparsity_now,
                        "factor": pruner.factor_now,
                    }
                )


def in_thirds(optimizer: Optimizer, steps: int) -> LRScheduler:
    """The paper's learning rates: the base for a third of the steps, then a tenth, then a hundredth of it."""
    return MultiStepLR(optimizer, [steps // 3, 2 * steps // 3])


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor, *, batch_size: int = 1000) -> float:
    """Top-1 accuracy in percent, in evaluation mode; the model's mode is left as it was."""
    training = model.training
    model.eval()
    right = sum(
        int((model(a).argmax(1) == b).sum())
        for a, b in zip(x.split(batch_size), y.split(batch_size), strict=True)
    )
    model.train(training)
    return 100 * right / len(y)
