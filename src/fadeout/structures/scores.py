"""What a criterion says of a network's weights: scores for each parameter, of which the lowest go first."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fadeout import criteria
from fadeout._arguments import shown
from fadeout._clock import Clock
from fadeout.criteria import Criterion, check_elementwise
from fadeout.torch_bridge.sharding import Layout, gradient_of, local
from fadeout.torch_bridge.step_hooks import gradient_scale


class Scores:
    """The scores of a network's weights while it trains.

    A criterion that looks at gradients is asked once in a step, when they are ready (:meth:`keep`); all
    others whenever somebody wants to know (:meth:`now`).

    Args:
        parameters: by name.
        criterion: see :mod:`fadeout.criteria`.
        layout: which process has which part of them.
        clock: for messages.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], criterion: Criterion, layout: Layout, clock: Clock
    ):
        if not callable(criterion):
            raise ValueError(f"criterion is a callable (weight, gradient) -> score, got {criterion!r}")
        if layout.sharded:
            check_elementwise(criterion)
        self.parameters, self.criterion, self._layout, self.clock = parameters, criterion, layout, clock
        self.need_gradients = looks_at_gradients(criterion)
        self.kept: dict[str, Tensor] = {}
        """Those of the last step, where the criterion looks at gradients."""
        self.gone: Mapping[str, Tensor] = {}
        """Masks of what is lowest whatever its score, because it has been removed."""

    @property
    def are_magnitudes(self) -> bool:
        """Whether they are the weights' own magnitudes: these need not be written down to be compared."""
        return self.criterion is criteria.magnitude and not self.gone

    def keep(self, optimizers: Sequence[Optimizer]) -> None:
        """Score the weights by the gradients that a step is about to use."""
        scales = {id(p): gradient_scale(o) for o in optimizers for g in o.param_groups for p in g["params"]}
        update = getattr(self.criterion, "update", lambda old, new: new)
        for name, score in self._ask(scales).items():
            old = self.kept.get(name)
            self.kept[name] = score if old is None else update(old, score)

    def now(self, alone: bool = False) -> dict[str, Tensor]:
        """All scores.

        Args:
            alone: only this process asks.

        Raises:
            FloatingPointError: on all processes, where a weight is not finite on one of them.
        """
        if not_finite(self.parameters, self._layout, alone) is not None:
            raise FloatingPointError
        if not self.need_gradients:
            return keep_down(self._ask(alone=alone), self.gone)
        before = getattr(self.criterion, "before", None)
        if not self.kept and before is not None:
            return keep_down(scores_of(self.parameters, before), self.gone)
        if not self.kept:
            raise ValueError(
                f"the criterion {shown(self.criterion)} scores weights by their gradients, and no step has "
                "been taken yet: ask after the first, or say needs_gradient = False of one that needs none"
            )
        return keep_down(self.kept, self.gone)

    def state(self) -> dict[str, Tensor]:
        """What has to be saved: zeros before the first step, so that all states have the same parts."""
        if self.kept or not self.need_gradients:
            return self.kept
        return {name: torch.zeros_like(widened(local(p.detach()))) for name, p in self.parameters.items()}

    def _ask(self, scales: Mapping[int, float] | None = None, alone: bool = False) -> dict[str, Tensor]:
        """Ask the criterion; raises, on all processes, where it gives no number on one of them."""
        scores = scores_of(self.parameters, self.criterion, scales)
        if self.criterion is criteria.magnitude:  # the weights are checked
            return scores
        odd = [bool(score.isnan().any()) for score in scores.values()]
        odd = odd if alone else self._layout.any(odd)
        if any(odd):
            name, when = next(n for n, is_odd in zip(scores, odd, strict=True) if is_odd), self.clock.step
            diverged = not_finite(self.parameters, self._layout, alone)
            if diverged is not None:
                raise ValueError(
                    f"{diverged!r} holds NaN or infinite weights at step {when}: training has diverged. The "
                    "pruner has changed nothing in this step"
                )
            raise ValueError(f"the criterion {shown(self.criterion)} gave NaN for {name!r} at step {when}")
        return scores


def not_finite(parameters: Mapping[str, Tensor], layout: Layout, alone: bool = False) -> str | None:
    """The name of a parameter that holds NaN or infinite weights on any process; None where none does."""
    weights = [local(parameter.detach()) for parameter in parameters.values()]
    # the quickest way to see every weight: a norm takes fifty times as long
    ends = [torch.stack(torch.aminmax(w)) if w.numel() else w.new_zeros(2) for w in weights]
    finite = torch.stack([pair.isfinite().all().to(ends[0].device) for pair in ends]).tolist()
    odd = [not one for one in finite]
    odd = odd if alone else layout.any(odd)
    return next((name for name, is_odd in zip(parameters, odd, strict=True) if is_odd), None)


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
        before = _version(weight)
        try:
            scores[name] = score = criterion(weight, gradient)
        except Exception as error:
            raise ValueError(f"the criterion {shown(criterion)} fails for {name!r}: {error}") from error
        if _version(weight) != before:
            raise ValueError(
                f"the criterion {shown(criterion)} changes the weights of {name!r} in place: let it compute "
                "new tensors, say by abs() instead of abs_()"
            )
        if not isinstance(score, Tensor) or score.shape != weight.shape:
            given = f"scores of shape {tuple(score.shape)}" if isinstance(score, Tensor) else shown(score)
            raise ValueError(
                f"the criterion {shown(criterion)} gave {given} for {name!r}, "
                f"which has shape {tuple(weight.shape)}"
            )
        if not score.is_floating_point():  # ranks, say, or a condition: what is gone is below all of them
            scores[name] = score.to(weight.dtype)
    return scores


def keep_down(scores: dict[str, Tensor], gone: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The scores with what is gone at the bottom, so that a selection takes it first.

    >>> keep_down({"weight": torch.tensor([3.0, 2.0])}, {"weight": torch.tensor([True, False])})
    {'weight': tensor([-inf, 2.])}
    """
    return {n: s.masked_fill(gone[n], -math.inf) if n in gone else s for n, s in scores.items()}


def _version(tensor: Tensor) -> int:
    """How often a tensor has been written into; copies that inference mode makes do not count it."""
    return 0 if tensor.is_inference() else tensor._version


def widened(weight: Tensor) -> Tensor:
    """At least float32, which holds every narrower number exactly."""
    return weight if weight.dtype == torch.float64 else weight.float()
