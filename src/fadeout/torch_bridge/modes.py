"""Training and evaluation mode, for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """All of a network in training mode, or in evaluation mode; then each module has its own again.

    >>> model = nn.Linear(2, 2)
    >>> with in_mode(model, training=False):
    ...     print(model.training)
    False
    >>> model.training
    True
    """
    modes = {module: module.training for module in model.modules()}
    try:
        model.train(training)
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def still(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients."""
    with in_mode(model, training=False), torch.no_grad():
        yield
