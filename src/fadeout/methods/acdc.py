"""AC/DC: alternating compressed and decompressed training (Peste et al., 2021)."""

from collections.abc import Sequence
from typing import Literal

from torch import nn
from torch.optim import Optimizer

from fadeout import criteria
from fadeout._arguments import checked
from fadeout.criteria import Criterion
from fadeout.methods.method import Method, Phase, train
from fadeout.pruners.mask_pruner import MaskPruner
from fadeout.schedules import Sparsity, Steps
from fadeout.structures.base import Structure
from fadeout.torch_bridge.parameters import Prunable, has_two_dimensions, momenta

Phases = Literal["cifar", "imagenet"]

_COMPRESSED: dict[Phases, Sequence[tuple[int, int]]] = {
    "cifar": ((5, 15), (25, 35), (45, 55), (65, 75), (85, 100)),
    "imagenet": ((10, 15), (20, 25), (30, 35), (40, 45), (50, 55), (60, 65), (70, 75), (85, 100)),
}
"""From and to which hundredth of the training: published for 200 epochs of CIFAR and 100 of ImageNet."""


class ACDC(MaskPruner):
    """Train densely and sparsely by turns, and end sparsely.

    - *Compression*: the weights of lowest magnitude, exactly as many as are to go, are set to zero and held
      there; the others train on.
    - *Decompression*: all weights train again, from zero where they were held, and momentum starts anew.

    As published for CIFAR, the first twentieth of the training is dense, phases of a tenth follow, sparse and
    dense, and the last sparse one takes 15 %. For ImageNet the first tenth is dense, phases are half as long,
    and the last two as above. Published in epochs, they are shares of the training here, whatever its length.

    Args:
        model, optimizer, steps, structure, criterion, prunable: as in
            :class:`fadeout.SelectiveWeightDecay`.
        sparsity: the fraction to remove, the same in each compressed phase; of a schedule, its last value.
        phases: those for ``"cifar"`` or ``"imagenet"``.

    >>> import torch
    >>> model = torch.nn.Linear(10, 10)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> pruner = ACDC(model, optimizer, sparsity=0.9, steps=100)
    >>> left = []
    >>> for _ in range(100):
    ...     optimizer.zero_grad()
    ...     model(torch.randn(8, 10)).square().mean().backward()
    ...     optimizer.step()
    ...     left.append(int(model.weight.count_nonzero()))
    >>> left[3], left[4], left[14], left[15], left[84], left[-1]
    (100, 10, 10, 100, 10, 10)

    Reference: Peste et al., "AC/DC: Alternating Compressed/DeCompressed Training of Deep Neural Networks",
    NeurIPS 2021; the phases are those of the authors' programme, whose momentum starts anew in all weights.
    """

    @checked
    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        sparsity: Sparsity | None = None,
        steps: Steps,
        structure: Structure | None = None,
        criterion: Criterion = criteria.magnitude,
        prunable: Prunable = has_two_dimensions,
        phases: Phases = "cifar",
    ):
        self.phases: Phases = phases
        super().__init__(
            model,
            optimizer,
            sparsity=sparsity,
            steps=steps,
            structure=structure,
            criterion=criterion,
            prunable=prunable,
        )

    @property
    def sparsity_now(self) -> float:
        """The fraction that is held at zero in this step."""
        return self.final_sparsity * self._is_compressed(self.steps_taken)

    @property
    def acts_early(self) -> bool:
        return True

    def join(self, optimizer: Optimizer, wants_loss: bool) -> None:
        self.zero_gradients(optimizer)

    def end(self) -> None:
        before, after = self._is_compressed(self.steps_taken), self._is_compressed(self.steps_taken + 1)
        self.zero_held()
        if after and not before:
            self.held = self.select(self.final_sparsity)
            self.zero_held()
        elif before and not after:
            self.held = {}
            self._forget_momentum()

    def _is_compressed(self, step: int) -> bool:
        """Whether the network is sparse after so many steps: never at first, and always at the end."""
        now, steps = min(step, self.steps - 1), self.steps
        compressed = _COMPRESSED[self.phases]
        return step > 0 and any(a * steps // 100 <= now < b * steps // 100 for a, b in compressed)

    def _forget_momentum(self) -> None:
        for optimizer in self.optimizers:
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                for momentum in momenta(optimizer, parameter):
                    momentum.zero_()


def acdc(epochs: int, sparsity: float, data: str) -> list[Phase]:
    """Peste et al. 2021: compressed and decompressed training by turns (AC/DC)."""
    return train(ACDC, epochs, sparsity=sparsity, phases=_phases_for(data))


def acdc_lamp(epochs: int, sparsity: float, data: str) -> list[Phase]:
    """AC/DC by the layer-adaptive score LAMP: for networks with norms, whose layers magnitudes can empty."""
    return train(ACDC, epochs, sparsity=sparsity, criterion=criteria.lamp, phases=_phases_for(data))


def _phases_for(data: str) -> Phases:
    return "imagenet" if data.startswith("imagenet") else "cifar"


METHOD = Method("acdc", acdc, label="AC/DC", colour="#84180f", dark_colour="#7a8b51", marker="$♣$", order=6)
BY_LAMP = Method(
    "acdc_lamp",
    acdc_lamp,
    label="AC/DC, LAMP",
    colour="#c0563b",
    dark_colour="#c3d08b",
    marker="$♧$",
    order=6,
)
