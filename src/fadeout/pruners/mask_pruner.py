"""What pruners that hold weights at zero share: masks of these weights, and their state."""

from typing import Any

import torch
from torch.optim import Optimizer

from fadeout.pruners.pruner import Pruner
from fadeout.structures.elements import Elements
from fadeout.torch_bridge.parameters import held_by
from fadeout.torch_bridge.sharding import gradient_of


class MaskPruner(Pruner):
    """The base of pruners that hold weights at zero: in ``_scores.gone`` are the masks of those."""

    _state_parts = (*Pruner._state_parts, "held")
    _default_structure = Elements

    @property
    def factor_now(self) -> float:
        """What a targeted weight is multiplied by: zero."""
        return 0.0

    def state_dict(self) -> dict[str, Any]:
        nothing = {name: torch.zeros_like(self._weight(name), dtype=torch.bool) for name in self.parameters}
        return {**super().state_dict(), "held": self._distributed({**nothing, **self._scores.gone})}

    def _read(self, state: dict[str, Any]) -> dict[str, Any]:
        return {**super()._read(state), "held": self._blocks(state["held"] or {})}

    def _restore(self, parts: dict[str, Any]) -> None:
        super()._restore(parts)
        self._scores.gone = parts["held"]

    def _zero(self) -> None:
        self._set_to_zero(self._scores.gone)

    def _zero_gradients(self, optimizer: Optimizer) -> None:
        """Those of held weights: the optimizer's averages are then of weights that take part alone."""
        own = held_by([optimizer])
        for name, mask in self._scores.gone.items():
            self._check_shape(name)
            parameter = self.parameters[name]
            gradient = gradient_of(parameter) if id(parameter) in own else None
            if gradient is not None and not gradient.is_sparse:
                gradient.masked_fill_(mask, 0)
