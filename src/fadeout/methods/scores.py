"""What a criterion says of a network's weights: scores for each parameter, of which the lowest go first."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fadeout.criteria import Criterion
from fadeout.torch_bridge.sharding import gradient_of, local


def looks_at_gradients(criterion: Criterion) -> bool:
    """Whether a criterion wants gradients; one that does not say otherwise does."""
    return getattr(criterion, "needs_gradient", True)


@torch.no_grad()
def scores_of(
    parameters: Mapping[str, nn.Parameter], criterion: Criterion, scales: Mapping[int, float] | None = None
) -> dict[str, Tensor]:
    """The scores of the weights that this process has.

    Args:
        parameters: by name.
        criterion: see :mod:`fadeout.criteria`.
        scales: what a loss scaler has multiplied the gradients by, by the parameter's ``id``.

    >>> layer = nn.Linear(2, 1)
    >>> layer.weight.data = torch.tensor([[-3.0, 2.0]])
    >>> scores_of({"weight": layer.weight}, lambda weight, gradient: weight.abs())
    {'weight': tensor([[3., 2.]])}
    """
    scores = {}
    for name, parameter in parameters.items():
        weight = widened(local(parameter.detach()))
        gradient = weight.new_zeros(()).expand_as(weight)
        own = gradient_of(parameter) if looks_at_gradients(criterion) else None
        if own is not None:
            dense = own.to_dense() if own.is_sparse else own
            gradient = dense.to(weight.dtype) / (scales or {}).get(id(parameter), 1.0)
        scores[name] = score = criterion(weight, gradient)
        if score.shape != weight.shape:
            raise ValueError(
                f"{criterion} gave scores of shape {tuple(score.shape)} for {name!r}, "
                f"which has shape {tuple(weight.shape)}"
            )
    return scores


def keep_down(scores: dict[str, Tensor], gone: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The scores with what is gone at the bottom, so that a selection takes it first.

    >>> keep_down({"weight": torch.tensor([3.0, 2.0])}, {"weight": torch.tensor([True, False])})
    {'weight': tensor([-inf, 2.])}
    """
    return {n: s.masked_fill(gone[n], -math.inf) if n in gone else s for n, s in scores.items()}


def widened(weight: Tensor) -> Tensor:
    """At least float32, which holds every narrower number exactly."""
    return weight if weight.dtype == torch.float64 else weight.float()
