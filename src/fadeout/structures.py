"""Structures: what stands and falls together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from fadeout.parameters import Prunable, choose
from fadeout.selection import lowest


@dataclass(frozen=True)
class Elements:
    """Every weight stands for itself: unstructured pruning.

    ``w* = {w : score(w) <= delta}``, with ``delta`` such that ``n(w*) = round(T n(w))`` exactly.

    Args:
        scope: ``"network"`` ranks all weights together, ``"layer"`` those of each parameter apart.

    >>> import torch
    >>> scores = {"a": torch.tensor([1.0, 4.0]), "b": torch.tensor([2.0, 3.0])}
    >>> Elements().select(scores, 0.5)
    {'a': tensor([ True, False]), 'b': tensor([ True, False])}
    """

    scope: Literal["network", "layer"] = "network"

    def __post_init__(self):
        if self.scope not in ("network", "layer"):
            raise ValueError(f"scope is 'network' or 'layer', got {self.scope!r}")

    gradual: ClassVar[bool] = True
    """The target grows with progress, unless ``sparsity`` is itself a schedule."""

    def bind(
        self, model: nn.Module, optimizers: Sequence[Optimizer] | None, prunable: Prunable
    ) -> "BoundElements":
        """Find the weights that take part; without optimizers, where training is over, all of the model's."""
        return BoundElements(self, choose(model, optimizers, prunable))

    def select(self, scores: Mapping[str, Tensor], sparsity: float) -> dict[str, Tensor]:
        """Mark the weights that a removal at this sparsity would take."""
        if self.scope == "layer":
            return {n: lowest([s], round(sparsity * s.numel()))[0] for n, s in scores.items()}
        total = sum(score.numel() for score in scores.values())
        marks = lowest(list(scores.values()), round(sparsity * total))
        return dict(zip(scores, marks, strict=True))


@dataclass(frozen=True)
class BoundElements:
    """The weights of one network."""

    structure: Elements
    parameters: dict[str, nn.Parameter]

    def check(self, sparsity: float) -> None:
        """Every target can be reached."""

    def select(self, scores: Mapping[str, Tensor], sparsity: float) -> dict[str, Tensor]:
        """Mark the weights that a removal at this sparsity would take."""
        return self.structure.select(scores, sparsity)
