"""A fade on the weights of one network: what it does there around each step of their optimizers."""

from collections.abc import Mapping
from typing import Any

import torch

from fadeout.fades import Fade
from fadeout.pruners.pruner import Pruner
from fadeout.structures.base import Marked, Target
from fadeout.torch_bridge.step_hooks import Rounds


class BoundFade(Rounds):
    """What a fade does to a pruner's weights; see :class:`Rounds` for what is called when.

    Args:
        pruner: whose weights they are; it says which are targeted.
        fade: how many, and how strongly.
    """

    blame = ""
    """What the fade may have to do with a divergence, in the words of a message."""

    def __init__(self, pruner: Pruner, fade: Fade):
        self._pruner, self._fade = pruner, fade
        self._layout, self._clock = pruner._layout, pruner._clock
        self._pending: dict[str, float] = {}  # doses too small for the dtype of a parameter

    def targets(self, sparsity: float) -> Mapping[str, Target]:
        """The weights that a fade to this sparsity acts on, by parameter."""
        targets = self._pruner._choose(sparsity)
        if self._fade.selective:
            return targets
        weights = {name: self._pruner.weight(name) for name in targets}
        return {name: Marked(torch.ones_like(weight, dtype=torch.bool)) for name, weight in weights.items()}

    def recover(self) -> None:
        """Leave the parameters as they are between steps, where one was interrupted."""

    def look_for_settled(self) -> None:
        """Look which weights are zero for good, before somebody asks which are the lowest."""

    # State --------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What has to be saved."""
        return {"pending": {name: self._pending.get(name, 0.0) for name in self._pruner.parameters}}

    def read(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """What of a pruner's state is to be restored; raises where it is that of another fade."""
        if "latents" in state and not self._fade.latent:
            raise ValueError(
                f"the state is that of another fade: it has latent weights, and this pruner {self._fade}. "
                "Pass the fade that it was saved with, fadeout.Latent()"
            )
        return {"pending": {name: float(dose) for name, dose in state["pending"].items() if dose}}

    def restore(self, parts: Mapping[str, Any]) -> None:
        """Take over what :meth:`read` gave."""
        self._pending = parts["pending"]
