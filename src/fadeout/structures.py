"""Structures: what stands and falls together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fadeout.parameters import Prunable, choose
from fadeout.selection import Finder, lowest
from fadeout.targets import Below


@dataclass(frozen=True)
class Elements:
    """Every weight stands for itself: unstructured pruning.

    ``w* = {w : score(w) <= delta}``, with ``delta`` such that ``n(w*) = round(T n(w))`` exactly.

    Args:
        scope: ``"network"`` ranks all weights together, ``"layer"`` those of each parameter apart.
        compile: whether to compile the passes over the weights; by default where the time is won back.

    >>> import torch
    >>> scores = {"a": torch.tensor([1.0, 4.0]), "b": torch.tensor([2.0, 3.0])}
    >>> Elements().select(scores, 0.5)
    {'a': tensor([ True, False]), 'b': tensor([ True, False])}
    """

    scope: Literal["network", "layer"] = "network"
    compile: bool | None = None

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


class BoundElements:
    """The weights of one network."""

    def __init__(self, structure: Elements, parameters: dict[str, nn.Parameter]):
        self.structure, self.parameters = structure, parameters
        self.steps = 0  # of the training, as far as it is known: it decides whether to compile
        self._finders: dict[str, Finder] = {}

    def check(self, sparsity: float) -> None:
        """Every target can be reached."""

    def select(self, scores: Mapping[str, Tensor], sparsity: float) -> dict[str, Tensor]:
        """Mark the weights that a removal at this sparsity would take."""
        return self.structure.select(scores, sparsity)

    def below(self, sparsity: float) -> dict[str, Below]:
        """The same for the weights as they are, ranked by magnitude, without a mask.

        Raises:
            FloatingPointError: where a weight is not finite.
        """
        if self.structure.scope == "layer":
            return {name: self._below(name, [name], sparsity)[name] for name in self.parameters}
        return self._below("network", list(self.parameters), sparsity)

    def _below(self, key: str, names: list[str], sparsity: float) -> dict[str, Below]:
        weights = [self.parameters[name].detach() for name in names]
        total = sum(weight.numel() for weight in weights)
        if key not in self._finders:
            self._finders[key] = Finder(
                magnitude=True, work=total * self.steps, compile=self.structure.compile
            )
        found = self._finders[key](weights, round(sparsity * total))
        wide = max((_widened(weight) for weight in weights), key=lambda dtype: dtype.itemsize)
        passes = self._finders[key].passes(wide)
        return {name: Below(found, number, passes) for number, name in enumerate(names)}


def _widened(weight: Tensor) -> torch.dtype:
    return torch.promote_types(weight.dtype, torch.float32)
