"""Criteria: which weights go first. Pure functions from a weight and its gradient to scores.

A criterion is any callable ``(weight, gradient) -> score``, all three tensors of the same shape; the
lowest scores go first. It is called with one parameter at a time, in float32 or wider, outside
autograd; a missing gradient counts as zero.

A criterion that does not look at the gradient may say so with an attribute
``needs_gradient = False``: its scores are then computed from the weights whenever they are wanted.
All others are scored once, when the gradients of a step are ready, and the pruner keeps the scores.

One that scores each weight by itself says ``elementwise = True``: where a parameter is sharded over
processes, each of them scores its own part. One that looks at whole layers cannot be used there.
"""

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from fadeout._arguments import Only, Weights, checked, shown
from fadeout.selection.floats import double

Criterion = Callable[[Tensor, Tensor], Tensor]


@checked
def magnitude(weight: Weights, gradient: Weights) -> Tensor:
    """``|w|``, the paper's criterion.

    >>> magnitude(torch.tensor([-2.0, 1.0]), torch.zeros(2))
    tensor([2., 1.])
    """
    return weight.abs()


@checked
def gradient_magnitude(weight: Weights, gradient: Weights) -> Tensor:
    """``|g|``: a weight that the loss does not feel goes first.

    >>> gradient_magnitude(torch.tensor([-2.0, 1.0]), torch.tensor([0.5, -3.0]))
    tensor([0.5000, 3.0000])
    """
    return gradient.abs()


@checked
def taylor(weight: Weights, gradient: Weights) -> Tensor:
    """``|w g|``: to first order, how much the loss changes when the weight is set to zero.

    >>> taylor(torch.tensor([-2.0, 1.0]), torch.tensor([0.5, -3.0]))
    tensor([1., 3.])

    Reference: Molchanov et al., "Importance Estimation for Neural Network Pruning", CVPR 2019.
    """
    _check_alike(weight=weight, gradient=gradient)
    return (weight * gradient).abs()


@checked
def lamp(weight: Weights, gradient: Weights) -> Tensor:
    """Layer-adaptive magnitude: ``w^2 / sum(v^2 for v in the layer if |v| >= |w|)``.

    In each layer it ranks as the magnitude does, but the largest weight of every layer scores 1, so
    that no layer loses its last weights to another whose weights merely happen to be larger. It
    protects thin layers at extreme targets, and networks with batch-norm, where the scale of a
    layer's weights means nothing.

    >>> lamp(torch.tensor([3.0, 4.0]), torch.zeros(2))
    tensor([0.3600, 1.0000], dtype=torch.float64)

    Reference: Lee et al., "Layer-adaptive Sparsity for the Magnitude-based Pruning", ICLR 2021.
    """
    square = double(weight).square().flatten()
    ordered = square.sort().values
    not_smaller = ordered.flip(0).cumsum(0).flip(0)
    # Equal weights get equal scores: each looks up the first of its equals in the order.
    score = square / not_smaller[torch.searchsorted(ordered, square)]
    score = score.nan_to_num_(0.0).view_as(weight)  # in float64: squares of faded weights underflow
    return score if score.device == weight.device else score.float().to(weight.device)


magnitude.needs_gradient = False  # pyright: ignore[reportFunctionMemberAccess]
lamp.needs_gradient = False  # pyright: ignore[reportFunctionMemberAccess]
for _criterion in (magnitude, gradient_magnitude, taylor):
    _criterion.elementwise = True  # pyright: ignore[reportFunctionMemberAccess]


def check_elementwise(criterion: Criterion) -> None:
    """Raise where a criterion cannot score the parts of a sharded parameter one by one."""
    if not getattr(criterion, "elementwise", False):
        raise ValueError(
            f"{criterion} may need whole layers, and the model's parameters are sharded over processes. Use "
            "fadeout.criteria.magnitude, taylor or gradient_magnitude; a criterion of your own that scores "
            "each weight by itself says so with an attribute elementwise = True"
        )


def _check_alike(**tensors: Tensor) -> None:
    """Raise where two tensors are not of the same shape and on the same device."""
    if len({(tensor.shape, tensor.device.type) for tensor in tensors.values()}) > 1:
        both = ", ".join(f"{n} {tuple(t.shape)} on {t.device.type}" for n, t in tensors.items())
        raise ValueError(f"{' and '.join(tensors)} have the same shape and device, got {both}")


class moving_average:
    """Average a criterion's scores over steps: ``s <- decay * s + (1 - decay) * new``.

    Gradients of single batches are noisy; the average ranks by what stays.

    Args:
        criterion: the criterion to average.
        decay: weight of the past, in [0, 1).
        before: what scores before the first step, when there are no gradients yet; by default that is an
            error.

    >>> steadier = moving_average(taylor, decay=0.9)
    >>> steadier.update(torch.tensor([1.0]), torch.tensor([2.0]))
    tensor([1.1000])
    """

    needs_gradient = True  # the average over steps is a state, to be kept like a gradient score

    @checked
    def __init__(
        self,
        criterion: Criterion,
        decay: Annotated[float, Only(lambda x: 0 <= x < 1, "a fraction in [0, 1)")] = 0.9,
        *,
        before: Criterion | None = None,
    ):
        self.criterion, self.decay, self.before = criterion, decay, before
        self.elementwise = getattr(criterion, "elementwise", False)

    def __call__(self, weight: Tensor, gradient: Tensor) -> Tensor:
        return self.criterion(weight, gradient)

    @checked
    def update(self, old: Weights, new: Weights) -> Tensor:
        """The average after one more step."""
        _check_alike(old=old, new=new)
        return old.lerp(new, 1 - self.decay)

    def __repr__(self) -> str:
        return f"moving_average({shown(self.criterion)}, decay={self.decay})"
