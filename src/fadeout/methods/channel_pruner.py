"""What pruners share that rank channels by a score of their own."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Container, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fadeout._arguments import checked
from fadeout.methods.mask_pruner import MaskPruner
from fadeout.methods.method import Phase
from fadeout.schedules import Sparsity, Steps
from fadeout.selection.floats import double
from fadeout.structures.channels import BoundChannels, Channels
from fadeout.structures.scores import keep_down, widened
from fadeout.torch_bridge.parameters import Prunable, has_two_dimensions
from fadeout.torch_bridge.sharding import region_of


class ChannelPruner(MaskPruner):
    """The base of pruners whose unit is a channel: a filter with its batch-norm's scale and shift.

    A subclass says what a channel's score is (:meth:`_rank`).
    """

    _bound: BoundChannels

    @checked
    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        sparsity: Sparsity,
        steps: Steps,
        structure: Channels,
        prunable: Prunable = has_two_dimensions,
    ):
        structure = copy.copy(structure)
        structure.filters = True
        super().__init__(
            model, optimizer, sparsity=sparsity, steps=steps, structure=structure, prunable=prunable
        )

    @abstractmethod
    def _rank(self) -> list[Tensor]:
        """For each layer a score for each of its channels, not below zero; the lowest of all go first."""

    def _select(self, sparsity: float, alone: bool = False) -> dict[str, Tensor]:
        self._check_finite(alone=alone)
        scores = {}
        for layer, score in zip(self._bound.layers, self._rank(), strict=True):
            for number, name in enumerate(layer.scored):  # the norm of all of them is to be the score
                weight, region = self._weight(name), region_of(self.parameters[name])
                scores[name] = torch.zeros_like(widened(weight))
                if weight.numel() and number == 0 and not any(region.offset[1:]):
                    scores[name].view(len(weight), -1)[:, 0] = score[region.slices[0]].to(scores[name])
        return self._bound.select(keep_down(scores, self._scores.gone), sparsity)

    def _sum_up(self, values: Callable[[str], Tensor], names: Container[str]) -> list[Tensor]:
        """For each layer the sums over each channel of what a function gives for this process's blocks."""
        sums = [torch.zeros(layer.width, dtype=torch.float64, device="cpu") for layer in self._bound.layers]
        for layer, total in zip(self._bound.layers, sums, strict=True):
            for name in layer.fading:
                if name in names and self._layout.owns(name):
                    value = double(values(name))
                    rows = value if value.dim() == 1 else value.flatten(1).sum(1)
                    total[region_of(self.parameters[name]).slices[0]] += rows.cpu()
        return list(self._layout.add(torch.cat(sums)).split([layer.width for layer in self._bound.layers]))


def train_channels(
    method: type[ChannelPruner], name: str, epochs: int, sparsity: float, structure: str
) -> list[Phase]:
    """The one phase of a method that prunes channels while it trains."""
    if structure != "channels":
        raise ValueError(f"{name} prunes whole channels: --structure channels")
    return [Phase("train", epochs, pruner=partial(method, sparsity=sparsity), restart=True)]
