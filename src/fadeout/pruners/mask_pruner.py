"""What pruners that hold weights at zero share: masks of these weights, and their state."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fadeout.pruners.pruner import Pruner
from fadeout.structures.elements import Elements


class MaskPruner(Pruner):
    """The base of pruners that hold weights at zero.

    A subclass says which (:attr:`held`), and sets them to zero after each step (:meth:`zero_held`).
    """

    _state_parts = (*Pruner._state_parts, "held")
    _default_structure = Elements

    @property
    def factor_now(self) -> float:
        """What a targeted weight is multiplied by: zero."""
        return 0.0

    @property
    def held(self) -> Mapping[str, Tensor]:
        """Masks of the weights that are to be zero, True where one is, by name; none at first.

        They are part of the state, and removal takes them first, whatever their scores.
        """
        return self._scores.gone

    @held.setter
    def held(self, masks: Mapping[str, Tensor]) -> None:
        self._scores.gone = masks

    def state_dict(self) -> dict[str, Any]:
        nothing = {name: torch.zeros_like(self.weight(name), dtype=torch.bool) for name in self.parameters}
        return {**super().state_dict(), "held": self._distributed({**nothing, **self.held})}

    def _read(self, state: dict[str, Any]) -> dict[str, Any]:
        return {**super()._read(state), "held": self._blocks(state["held"] or {})}

    def _restore(self, parts: dict[str, Any]) -> None:
        super()._restore(parts)
        self.held = parts["held"]

    def between(self) -> None:
        self.zero_held()  # the next optimizer may not step for a while

    def zero_held(self) -> None:
        """Set the weights that are :attr:`held` to exactly zero."""
        self._set_to_zero(self.held)

    def zero_gradients(self, optimizer: Optimizer) -> None:
        """Set the gradients of held weights to zero: the optimizer's averages leave them out."""
        for name in self.held:
            self._check_shape(name)
        for name, gradient in self._gradients(optimizer).items():
            if name in self.held and not gradient.is_sparse:
                gradient.masked_fill_(self.held[name], 0)
