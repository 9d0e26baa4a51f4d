"""Selective weight decay as in the paper's Algorithm 1, by a sort and autograd: what the pruner replaces."""

from collections.abc import Iterable

import torch
from torch import nn


def reference_step(weights: Iterable[nn.Parameter], sparsity: float, strength: float) -> None:
    """Find the lowest weights, and add the gradient of ``strength / 2 * sum(w*^2)`` to theirs.

    >>> weight = nn.Parameter(torch.tensor([[3.0, -1.0, 2.0, 4.0]]))
    >>> reference_step([weight], sparsity=0.5, strength=10.0)
    >>> weight.grad
    tensor([[  0., -10.,  20.,   0.]])
    """
    weights = list(weights)
    scores = torch.cat([weight.detach().abs().flatten() for weight in weights])
    threshold = scores.sort().values[round(sparsity * len(scores)) - 1]
    targeted = [weight[weight.detach().abs() <= threshold] for weight in weights]
    penalty = torch.stack([strength / 2 * chosen.square().sum() for chosen in targeted]).sum()
    penalty.backward()
