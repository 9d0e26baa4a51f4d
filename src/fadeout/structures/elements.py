"""Structures: what stands and falls together."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from fadeout.selection.search import Finder, find_lowest
from fadeout.structures.targets import Below
from fadeout.torch_bridge.parameters import Prunable, choose, group_of
from fadeout.torch_bridge.sharding import Layout, local


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
        parameters = choose(model, optimizers, prunable)
        return BoundElements(self, parameters, Layout(parameters, group_of(model), alone=optimizers is None))

    def select(
        self, scores: Mapping[str, Tensor], sparsity: float, layout: Layout | None = None
    ) -> dict[str, Tensor]:
        """Mark the weights that a removal at this sparsity would take.

        Args:
            scores: one tensor for each parameter.
            sparsity: the fraction to remove.
            layout: where the scores are blocks of larger ones, who has the others.
        """
        layout = layout or Layout({}, alone=True)
        layers = self.ranked_together(scores)
        finders = [Finder(shards=layout.shards(names)) for names in layers]
        groups = [[scores[name] for name in names] for names in layers]
        ks = [round(sparsity * finder.total(group)) for finder, group in zip(finders, groups, strict=True)]
        marks = {}
        for names, found in zip(layers, find_lowest(finders, groups, ks, layout.total), strict=True):
            marks |= {name: found.mask(number, scores[name]) for number, name in enumerate(names)}
        return marks

    def ranked_together(self, names: Iterable[str]) -> list[list[str]]:
        """Which parameters are ranked together."""
        return [[name] for name in names] if self.scope == "layer" else [list(names)]


class BoundElements:
    """The weights of one network."""

    def __init__(self, structure: Elements, parameters: dict[str, nn.Parameter], layout: Layout):
        self.structure, self.parameters, self.layout = structure, parameters, layout
        self.steps = 0  # of the training, as far as it is known: it decides whether to compile
        self._layers = structure.ranked_together(parameters)
        self._finders: list[Finder] = []

    def check(self, sparsity: float) -> None:
        """Every target can be reached."""

    def select(self, scores: Mapping[str, Tensor], sparsity: float) -> dict[str, Tensor]:
        """Mark the weights that a removal at this sparsity would take."""
        return self.structure.select(scores, sparsity, self.layout)

    def below(self, sparsity: float) -> dict[str, Below]:
        """The same for the weights as they are, ranked by magnitude, without a mask.

        Raises:
            FloatingPointError: where a weight is not finite.
        """
        if not self._finders:
            self._finders = [self._finder(names) for names in self._layers]
        groups = [[local(self.parameters[name].detach()) for name in names] for names in self._layers]
        ks = [round(sparsity * f.total(group)) for f, group in zip(self._finders, groups, strict=True)]
        lowest = find_lowest(self._finders, groups, ks, self.layout.total)
        targets = {}
        for names, finder, found in zip(self._layers, self._finders, lowest, strict=True):
            passes = finder.passes(found.wide)
            for number, name in enumerate(names):
                targets[name] = Below(found, number, passes)
        return targets

    def _finder(self, names: list[str]) -> Finder:
        # all weights, whoever has them: so that every process and layer does the same
        work = self.steps * sum(parameter.numel() for parameter in self.parameters.values())
        return Finder(
            magnitude=True, work=work, compile=self.structure.compile, shards=self.layout.shards(names)
        )
