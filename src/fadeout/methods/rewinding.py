"""Learning-rate rewinding (Renda et al., 2020)."""

from fadeout.methods.method import Method, Phase
from fadeout.methods.slimming import SmoothL1, penalty


def rewinding(
    epochs: int, sparsity: float, structure: str, preset: str, smooth_l1: SmoothL1 = 1e-4
) -> list[Phase]:
    """Renda et al. 2020: train, remove once, and train again as long, with the same learning rates.

    Structured, the first training has the penalty of Liu et al.
    """
    pruner = penalty(smooth_l1, preset) if structure == "channels" else None
    return [
        Phase("train", epochs, pruner=pruner, restart=True),
        Phase("train again", epochs, remove=sparsity, restart=True),
    ]


REWINDING = Method(
    "rewinding", rewinding, label="LR rewinding", colour="#3aa7dc", dark_colour="#5fdcff", marker="P", order=4
)
