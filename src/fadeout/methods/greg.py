"""GReg-2 (Wang et al., 2021): a growing penalty on all filters tells which of them to push to zero."""

from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from fadeout.fades import learning_rate
from fadeout.methods.method import Method, Phase, check_structure, train
from fadeout.pruners.channel_pruner import ChannelPruner
from fadeout.structures.base import flush_
from fadeout.structures.channels.candidates import Layer
from fadeout.torch_bridge.parameters import named
from fadeout.torch_bridge.step_hooks import gradient_scale

# Of the training. Published, for ResNet-56 on CIFAR-10: 78,200 steps of training, 10,000 to pick, some 11,000
# to push (until the pushed filters are a thousand times smaller), 10,000 to stabilise, 46,920 to fine-tune.
_BEGUN, _PICKED, _PUSHED, _REMOVED = 0.5, 0.56, 0.63, 0.7
_CEILING, _FINAL = 0.01, 1.0  # the published penalties, when it picks and when it has pushed


class GrowingRegularization(ChannelPruner):
    """Penalise all filters more and more, see which give way, and push these to zero.

    1. *Train*, up to 0.5 of the training.
    2. *Pick*, up to 0.56: ``lambda w`` joins the gradient of every filter, with a ``lambda`` that grows from
       0 to 0.01. Where the loss curves little, filters shrink more, so that their sizes tell of curvature.
       Those of smallest L1 norm are then to go, the same share of each layer. As in the paper's experiments,
       the first layer and the sums that end residual blocks stay whole: their channels go last, if at all.
    3. *Push*, up to 0.63: for these ``lambda`` grows to 1, the others have none. Up to 0.7 it stays there.
    4. *Remove*: filters, scales and shifts are set to zero and held there while the rest trains on.

    The penalties are the published ones, and so are the shares of the training, rounded; ``lambda`` grows at
    every step, not at every tenth. (In the authors' programme kept filters have one of -1e-4 after the pick.)

    Args:
        model, optimizer, steps, prunable: as in :class:`fadeout.SelectiveWeightDecay`.
        sparsity: the fraction to remove, as ``structure`` counts it.
        structure: a :class:`fadeout.Channels`; which channels can go, and how they are counted.

    >>> import fadeout
    >>> model = fadeout.models.smallcnn(norm=True)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> structure = fadeout.Channels(torch.zeros(1, 1, 8, 8))
    >>> pruner = GrowingRegularization(model, optimizer, sparsity=0.5, steps=50, structure=structure)
    >>> penalties = []
    >>> for _ in range(50):
    ...     penalties.append(round(pruner.penalty_now, 4))
    ...     optimizer.zero_grad()
    ...     model(torch.randn(8, 1, 8, 8)).square().mean().backward()
    ...     optimizer.step()
    >>> penalties[25:37]
    [0.0, 0.0033, 0.0067, 0.01, 0.2929, 0.5757, 0.8586, 1.0, 1.0, 1.0, 0.0, 0.0]
    >>> pruner.fade  # removal takes nothing
    0.0

    Reference: Wang et al., "Neural Pruning via Growing Regularization", ICLR 2021.
    """

    @property
    def penalty_now(self) -> float:
        """The paper's lambda at this step: of all filters at first, then of those that are to go."""
        if self._is_past(_REMOVED):
            return 0.0
        return float(np.interp(self.progress, (_BEGUN, _PICKED, _PUSHED), (0.0, _CEILING, _FINAL)))

    @property
    def factor_now(self) -> float:
        """What plain SGD multiplies a penalised weight by at this step; 0 when it is removed."""
        if self._is_past(_REMOVED):
            return 0.0
        return min(1 - learning_rate(group) * self.penalty_now for group in self.groups().values())

    @property
    def acts_early(self) -> bool:
        return True

    def join(self, optimizer: Optimizer, wants_loss: bool) -> Tensor | None:
        penalty, loss = self.penalty_now, None
        gradients = self._gradients(optimizer) if penalty else {}
        groups, scale = self.groups(), gradient_scale(optimizer)
        is_picked = self._is_past(_PICKED)
        for name in self._filters(whole=is_picked):  # of whole layers only such as had to be picked
            if name not in gradients:
                continue
            weight = self.weight(name)
            if is_picked:
                weight = torch.where(self.held[name], weight, 0)
            sign = -1 if groups[name].get("maximize", False) else 1
            gradients[name].add_(weight, alpha=sign * scale * penalty)
            if wants_loss and self._layout.owns(name):
                value = penalty / 2 * weight.square().sum()
                loss = value if loss is None else loss + value.to(loss.device)
        return self._sum_over_processes(loss) if wants_loss and penalty else None

    def end(self) -> None:
        self.check_finite()
        if not self._is_past(_PICKED) and self._is_past(_PICKED, steps=1):
            self.held = self.select(self.final_sparsity)
        if self._is_past(_REMOVED, steps=1):
            self.zero_held()
        else:
            for name, mask in self.held.items():
                flush_(self.weight(name), mask)

    def share(self) -> float:
        return float(self._is_past(_PICKED))

    def _is_past(self, share: float, steps: int = 0) -> bool:
        """Whether this share of the training is over now, or so many steps later."""
        return (self.steps_taken + steps) / self.steps >= share

    def _filters(self, whole: bool) -> list[str]:
        """The filters of layers that lose channels, and perhaps of those that stay whole."""
        layers = (layer for layer in self._bound.layers if whole or not self._is_whole(layer))
        return [name for layer in layers for name in layer.fading if self.parameters[name].dim() > 1]

    def _is_whole(self, layer: Layer) -> bool:
        """Whether it is the network's first, or has scales alone, as behind an addition."""
        filters = [name for name in layer.fading if self.parameters[name].dim() > 1]
        return not filters or self._first in filters

    @cached_property
    def _first(self) -> str:
        return next(name for name, parameter in named(self._model).items() if parameter.dim() > 1)

    def score_channels(self) -> list[Tensor]:
        """The ranks of L1 norms in each layer, over its width, so that layers lose the same share."""
        norms = self.sum_by_channel(lambda name: self.weight(name).abs(), self._filters(whole=True))
        ranks = [(norm.argsort(stable=True).argsort() + 0.5) / len(norm) for norm in norms]
        return [rank + self._is_whole(layer) for rank, layer in zip(ranks, self._bound.layers, strict=True)]


def greg(epochs: int, sparsity: float, structure: str) -> list[Phase]:
    """Wang et al. 2021 (GReg-2): a growing penalty shows which filters give way, and pushes these to zero."""
    check_structure("greg", structure, "channels")
    return train(GrowingRegularization, epochs, sparsity=sparsity)


GREG = Method("greg", greg, label="GReg-2", colour="#a8324e", dark_colour="#e58aa0", marker="$☀$", order=20)
