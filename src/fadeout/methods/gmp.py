"""Gradual magnitude pruning (Zhu and Gupta, 2017)."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from fadeout import criteria
from fadeout.fades import GROWTH
from fadeout.methods.method import CriterionName, Method, Phase
from fadeout.methods.pruner import Pruner
from fadeout.methods.scores import keep_down


class GradualMagnitudePruning(Pruner):
    """Set the lowest weights to zero while training, more and more of them, and hold them there.

    The target grows as ``T (1 - (1 - t) ** 3)``, with ``t`` the position of the progress in the window
    from a tenth to three quarters of the training. It is the strongest plain rival at the same budget.

    Args:
        model, optimizer, sparsity, steps, structure, criterion, prunable: as in
            :class:`fadeout.SelectiveWeightDecay`; a ``sparsity`` that is a schedule replaces the growth.

    >>> model = torch.nn.Linear(10, 10)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> pruner = GradualMagnitudePruning(model, optimizer, sparsity=0.9, steps=100)
    >>> for _ in range(100):
    ...     optimizer.zero_grad()
    ...     model(torch.randn(8, 10)).square().mean().backward()
    ...     optimizer.step()
    >>> int(model.weight.count_nonzero())
    10

    Reference: Zhu and Gupta, "To Prune, or Not to Prune", 2017.
    """

    _state_parts = (*Pruner._state_parts, "held")
    _held: dict[str, Tensor] | None = None  # what is zero, from the first step on

    @property
    def factor_now(self) -> float:
        """What a targeted weight is multiplied by: zero."""
        return 0.0

    def end(self) -> None:
        self._check_finite()
        self._zero(self._held or {})
        self._held = self._targeted()
        self._zero(self._held)
        self._count()

    def state_dict(self) -> dict[str, Any]:
        nothing = {name: torch.zeros_like(self._weight(name), dtype=torch.bool) for name in self.parameters}
        return {**super().state_dict(), "held": self._distributed({**nothing, **(self._held or {})})}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._held = state["held"] and self._blocks(state["held"])

    def _growth(self) -> float:
        return GROWTH(self.progress + 1 / self.steps)

    def _scores(self, alone: bool = False) -> dict[str, Tensor]:
        return keep_down(super()._scores(alone), self._held or {})

    def _zero(self, gone: dict[str, Tensor]) -> None:
        for name, mask in gone.items():
            self._weight(name).masked_fill_(mask, 0)


def gmp(epochs: int, sparsity: float, criterion: CriterionName = "magnitude") -> list[Phase]:
    """Zhu and Gupta 2017: gradual magnitude pruning while it trains."""
    chosen = getattr(criteria, criterion)
    pruner = partial(GradualMagnitudePruning, sparsity=sparsity, criterion=chosen)
    return [Phase("train", epochs, pruner=pruner, restart=True)]


GMP = Method("gmp", gmp, label="GMP", colour="#bc57aa", dark_colour="#af5da6", marker="s", order=5)
