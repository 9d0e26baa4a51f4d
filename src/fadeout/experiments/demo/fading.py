"""How the sizes of the weights change through a training, as numbers to draw and to keep."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

LOWEST, HIGHEST, WIDTH = -10.0, 0.5, 0.125
"""Of ``log10 |w|``: the range of the histograms, and the width of a bin."""


@dataclass(frozen=True)
class Fading:
    """Histograms of ``log10 |w|``, one for the start and one for each epoch.

    Attributes:
        sparsity: the target.
        centres: of the bins. The first one also holds all that is smaller, exact zeros included.
        stays, goes: how many of the weights that are left in the end, and of those that are not, are in
            each bin; a row for each epoch.
    """

    sparsity: float
    centres: list[float]
    stays: list[list[int]]
    goes: list[list[int]]

    @classmethod
    def of(cls, sparsity: float, snapshots: Sequence[Tensor], stays: Tensor) -> "Fading":
        """From all weights at the start and after each epoch, and which of them are left in the end."""
        edges = np.arange(LOWEST, HIGHEST + WIDTH / 2, WIDTH)

        def counts(left: Tensor) -> list[list[int]]:
            sizes = [
                np.log10(np.maximum(snapshot[left].abs().numpy(), 10.0**LOWEST)) for snapshot in snapshots
            ]
            return [np.histogram(np.clip(size, LOWEST, HIGHEST), edges)[0].tolist() for size in sizes]

        return cls(sparsity, (edges[:-1] + WIDTH / 2).tolist(), counts(stays), counts(~stays))
