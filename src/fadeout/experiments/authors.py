"""What the authors' programme does otherwise than their paper says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fadeout.parameters import Prunable, choose
from fadeout.selection import lowest
from fadeout.structures import BoundElements, Elements


@dataclass(frozen=True)
class AuthorsElements(Elements):
    """Unstructured pruning with the authors' threshold.

    It is taken over all parameters but those of batch-norms, biases included, and applied to all parameters,
    batch-norms included; so the count over the latter is not that of the target.
    """

    def bind(
        self, model: nn.Module, optimizers: Sequence[Optimizer] | None, prunable: Prunable
    ) -> "BoundElements":
        parameters = choose(model, optimizers, lambda name, parameter: True)
        norms = {
            id(parameter)
            for module in model.modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm)
            for parameter in module.parameters()
        }
        return _Bound(self, parameters, frozenset(n for n, p in parameters.items() if id(p) not in norms))


class _Bound(BoundElements):
    def __init__(self, structure: Elements, parameters: dict[str, nn.Parameter], counted: frozenset[str]):
        super().__init__(structure, parameters)
        self.counted = counted

    def select(self, scores: Mapping[str, Tensor], sparsity: float) -> dict[str, Tensor]:
        counted = {name: score for name, score in scores.items() if name in self.counted}
        total = sum(score.numel() for score in counted.values())
        marks = lowest(list(counted.values()), round(sparsity * total))
        highest = [s[m].max() for s, m in zip(counted.values(), marks, strict=True) if bool(m.any())]
        threshold = torch.stack(highest).max() if highest else torch.tensor(-torch.inf)
        chosen = dict(zip(counted, marks, strict=True))
        return {name: chosen.get(name, score <= threshold.to(score)) for name, score in scores.items()}
