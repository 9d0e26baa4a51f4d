"""What the authors' programme does otherwise than their paper says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fadeout.selection.search import Finder
from fadeout.structures.base import Bound
from fadeout.structures.elements import Elements
from fadeout.torch_bridge.parameters import Prunable, choose, group_of
from fadeout.torch_bridge.sharding import Layout


@dataclass(frozen=True)
class AuthorsElements(Elements):
    """Unstructured pruning with the authors' threshold.

    It is taken over all parameters but those of batch-norms, biases included, and applied to all parameters,
    batch-norms included; so the count over the latter is not that of the target.
    """

    def bind(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer] | None,
        prunable: Prunable,
        steps: int = 0,
    ) -> "Bound":
        parameters = choose(model, optimizers, lambda name, parameter: True)
        norms = {
            id(parameter)
            for module in model.modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm)
            for parameter in module.parameters()
        }
        layout = Layout(parameters, group_of(model), alone=optimizers is None)
        return _Bound(self, parameters, layout, [n for n, p in parameters.items() if id(p) not in norms])


class _Bound(Bound):
    def __init__(
        self, structure: Elements, parameters: dict[str, nn.Parameter], layout: Layout, counted: list[str]
    ):
        super().__init__(structure, parameters, layout)
        self.counted = counted

    def select(self, scores: Mapping[str, Tensor], sparsity: float) -> dict[str, Tensor]:
        total = sum(self.parameters[name].numel() for name in self.counted)
        finder = Finder(shards=self.layout.shards(self.counted))
        found = finder([scores[name] for name in self.counted], round(sparsity * total))
        marks = {name: found.mask(number, scores[name]) for number, name in enumerate(self.counted)}
        limit = found.threshold
        if limit == torch.inf:  # all that count are taken: the highest of them is the limit
            highest = [float(scores[name].max()) for name in self.counted if scores[name].numel()]
            limit = self.layout.most(max(highest, default=-torch.inf))
        return {name: marks.get(name, score.to(found.wide) <= limit) for name, score in scores.items()}
