"""No pruning at all, behind the interface of the pruners."""

from typing import Any

from fadeout.masks import Masks
from fadeout.methods.method import Method, Phase
from fadeout.pruners.summary import Row, Summary


class NoPruning:
    """A pruner that does nothing, so that no training loop needs an ``if``.

    It takes whatever arguments a pruner takes.

    >>> pruner = NoPruning()
    >>> pruner.remove()
    Masks(0 parameters, 0 of 0 weights left)
    """

    progress = 0.0
    steps_taken = 0
    sparsity_now = 0.0
    final_sparsity = 0.0
    factor_now = 1.0
    fade = 0.0
    complete = True

    def __init__(self, *args: Any, **kwargs: Any):
        self._model = args[0] if args else kwargs.get("model")
        self.steps = kwargs.get("steps", 0)

    def masks(self) -> Masks:
        """No masks: everything stays."""
        return Masks({})

    def remove(self) -> Masks:
        """Removes nothing."""
        return Masks({})

    def summary(self) -> Summary:
        """Nothing is pruned."""
        return Summary((), Row("total", 0, 0, 0.0))

    def attach(self, optimizer: object) -> None:
        """Does nothing."""

    def detach(self) -> None:
        """Does nothing."""

    def state_dict(self) -> dict[str, Any]:
        """The number of steps, which callbacks of trainers compare."""
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Reads nothing."""


def dense(epochs: int) -> list[Phase]:
    """No pruning."""
    return [Phase("train", epochs, restart=True)]


DENSE = Method("dense", dense, label="dense", colour="#404b50", dark_colour="#d3dcdf", marker="d", order=0)
