"""Gradual magnitude pruning (Zhu and Gupta, 2017)."""

from fadeout import criteria
from fadeout.fades import GROWTH
from fadeout.methods.method import CriterionName, Method, Phase, train
from fadeout.pruners.mask_pruner import MaskPruner


class GradualMagnitudePruning(MaskPruner):
    """Set the lowest weights to zero while training, more and more of them, and hold them there.

    The target grows as ``T (1 - (1 - t) ** 3)``, with ``t`` the position of the progress in the window
    from a tenth to three quarters of the training. It is the strongest plain rival at the same budget.

    Args:
        model, optimizer, sparsity, steps, structure, criterion, prunable: as in
            :class:`fadeout.SelectiveWeightDecay`; a ``sparsity`` that is a schedule replaces the growth.

    >>> import torch
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

    def end(self) -> None:
        chosen = self.select(self.sparsity_now)
        self.zero_held()  # what was zero, and the step has moved
        self.held = chosen
        self.zero_held()

    def share(self) -> float:
        return GROWTH(self.progress + 1 / self.steps)


def gmp(epochs: int, sparsity: float, criterion: CriterionName = "magnitude") -> list[Phase]:
    """Zhu and Gupta 2017: gradual magnitude pruning while it trains."""
    return train(GradualMagnitudePruning, epochs, sparsity=sparsity, criterion=getattr(criteria, criterion))


def gmp_lamp(epochs: int, sparsity: float) -> list[Phase]:
    """Lee et al. 2021: gradual magnitude pruning by the layer-adaptive score LAMP."""
    return gmp(epochs, sparsity, "lamp")


GMP = Method("gmp", gmp, label="GMP", colour="#bc57aa", dark_colour="#af5da6", marker="s", order=5)
GMP_LAMP = Method(
    "gmp_lamp", gmp_lamp, label="GMP, LAMP", colour="#d5344a", dark_colour="#58972a", marker="$♥$", order=5
)
