"""Network slimming (Liu et al., 2017): a penalty on the scales of batch-norms, then a removal."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from fadeout._arguments import Only, checked
from fadeout.masks import Masks
from fadeout.methods.magnitude import FineTuneRate, LastFineTune
from fadeout.methods.method import Method, Phase, check_structure
from fadeout.pruners.step_pruner import StepPruner
from fadeout.schedules import Steps
from fadeout.structures.base import Structure
from fadeout.torch_bridge.step_hooks import gradient_scale

_Strength = Annotated[
    float, Only(lambda x: 0 <= x < math.inf, "the penalty's coefficient, a number from 0 on")
]


class Slimming(StepPruner):
    """Add ``lambda * sum(smooth_l1(scale))`` to the loss, over all batch-norm channels that could go.

    ``smooth_l1(x)`` is ``x^2 / 2`` below 1 and ``|x| - 1/2`` above, so ``lambda * clip(scale, -1, 1)`` joins
    the gradient. Nothing is removed while it trains: :func:`fadeout.methods.one_shot` with the same
    structure does so afterwards, and fine-tuning follows.

    Args:
        model, optimizer, steps, structure: as in :class:`fadeout.SelectiveWeightDecay`; the structure is
            :class:`fadeout.Channels`.
        strength: the paper's lambda.
        authors: the penalty as in the programme of Tessier et al.: ``x^2`` below 1, and above it ``x``,
            without the absolute value.

    >>> import torch, fadeout
    >>> model = fadeout.models.smallcnn(norm=True)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> structure = fadeout.Channels(torch.zeros(1, 1, 8, 8))
    >>> slimming = Slimming(model, optimizer, strength=0.5, steps=10, structure=structure)
    >>> model(torch.zeros(2, 1, 8, 8)).sum().mul(0).backward()
    >>> optimizer.step()
    >>> model.norm1.weight[0].item()  # 1 - 0.1 * 0.5 * 1
    0.949999988079071

    Reference: Liu et al., "Learning Efficient Convolutional Networks through Network Slimming", 2017.
    """

    @checked
    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        strength: _Strength,
        steps: Steps,
        structure: Structure,
        authors: bool = False,
    ):
        self.strength, self._authors = strength, authors
        super().__init__(model, optimizer, steps=steps, structure=structure)
        self._scales = {n for n, p in self.parameters.items() if n.endswith(".weight") and p.dim() == 1}
        if not self._scales:
            raise ValueError("slimming needs batch-norms: structure=fadeout.Channels(example_input)")
        self.attach(self.optimizers)

    sparsity_now = 0.0
    """No channel is targeted."""
    factor_now = 1.0
    fade = 0.0

    @property
    def acts_early(self) -> bool:
        return True

    def join(self, optimizer: Optimizer, wants_loss: bool) -> Tensor | None:
        groups, scale, loss = self.groups(), gradient_scale(optimizer) * self.strength, None
        for name, gradient in self._gradients(optimizer).items():
            if name not in self._scales:
                continue
            value = self.weight(name)
            sign = -1 if groups[name].get("maximize", False) else 1
            gradient.add_(self._slope(value), alpha=sign * scale)
            if wants_loss and self._layout.owns(name):
                penalty = self.strength * self._penalty(value).sum()
                loss = penalty if loss is None else loss + penalty.to(loss.device)
        return self._sum_over_processes(loss) if wants_loss else None

    def end(self) -> None:
        self.check_finite()

    def masks(self) -> Masks:
        """No masks: nothing is removed while it trains."""
        return Masks({})

    def remove(self) -> Masks:
        """Removes nothing, and detaches."""
        self.detach()
        return Masks({})

    def _slope(self, x: Tensor) -> Tensor:
        if self._authors:
            return (2 * x).where(x.abs() <= 1, 1.0)
        return x.clamp(-1, 1)

    def _penalty(self, x: Tensor) -> Tensor:
        if self._authors:
            return x.square().where(x.abs() <= 1, x)
        return (x.square() / 2).where(x.abs() <= 1, x.abs() - 0.5)


SmoothL1 = Annotated[float, "the coefficient of the penalty on the scales, where channels are pruned"]


def penalty(strength: float, preset: str) -> Callable[..., Any]:
    """What builds the pruner of a phase: the paper's penalty, or that of the authors' programme."""
    return partial(Slimming, strength=strength, authors=preset == "authors")


def liu(
    epochs: int,
    sparsity: float,
    structure: str,
    preset: str,
    last_fine_tune: LastFineTune = 15,
    fine_tune_lr: FineTuneRate = None,
    smooth_l1: SmoothL1 = 1e-4,
) -> list[Phase]:
    """Liu et al. 2017: train with a smooth-L1 penalty on the scales, remove once, fine-tune without it."""
    check_structure("liu", structure, "channels")
    return [
        Phase("train", epochs, pruner=penalty(smooth_l1, preset), restart=True),
        Phase("fine-tune", last_fine_tune, remove=sparsity, lr=fine_tune_lr),
    ]


LIU = Method("liu", liu, label="Liu et al.", colour="#536107", dark_colour="#ddcd65", marker="v", order=3)
