"""What pruners share that rank channels by a score of their own."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Container, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fadeout._arguments import checked
from fadeout.pruners.mask_pruner import MaskPruner
from fadeout.schedules import Sparsity, Steps
from fadeout.selection.floats import double
from fadeout.structures.channels import BoundChannels, Channels
from fadeout.structures.scores import keep_down, widened
from fadeout.torch_bridge.parameters import Prunable, has_two_dimensions
from fadeout.torch_bridge.sharding import region_of


class ChannelPruner(MaskPruner):
    """The base of pruners whose unit is a channel: a filter with its batch-norm's scale and shift.

    A subclass says what a channel's score is (:meth:`score_channels`).
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
    def score_channels(self) -> list[Tensor]:
        """For each layer a score for each of its channels, not below zero; the lowest of all go first."""

    def select(self, sparsity: float, alone: bool = False) -> dict[str, Tensor]:
        self.check_finite(alone=alone)
        scores = {}
        for layer, score in zip(self._bound.layers, self.score_channels(), strict=True):
            for number, name in enumerate(layer.scored):  # the norm of all of them is to be the score
                weight, region = self.weight(name), region_of(self.parameters[name])
                scores[name] = torch.zeros_like(widened(weight))
                dim = layer.dim(name)
                first = not any(offset for d, offset in enumerate(region.offset) if d != dim)
                if weight.numel() and number == 0 and first:
                    index = tuple(slice(None) if d == dim else 0 for d in range(weight.dim()))
                    own = layer.in_slices(name, score, region.whole[dim])
                    scores[name][index] = own[region.slices[dim]].to(scores[name])
        return self._bound.select(keep_down(scores, self.held), sparsity)

    def between(self) -> None:
        return  # channels that are to go may still be on their way

    def sum_by_channel(self, values: Callable[[str], Tensor], names: Container[str]) -> list[Tensor]:
        """For each layer the sums over each of its channels, on all processes.

        Args:
            values: gives this process's block of what is summed, by the name of a parameter.
            names: the parameters that are counted.
        """
        sums = [torch.zeros(layer.width, dtype=torch.float64, device="cpu") for layer in self._bound.layers]
        for layer, total in zip(self._bound.layers, sums, strict=True):
            for name in layer.fading:
                if name in names and self._layout.owns(name):
                    value = double(values(name))
                    dim = layer.dim(name)
                    rows = value if value.dim() == 1 else value.movedim(dim, 0).flatten(1).sum(1)
                    region = region_of(self.parameters[name])
                    own = torch.zeros(region.whole[dim], dtype=torch.float64, device="cpu")
                    own[region.slices[dim]] = rows.cpu()
                    total += layer.sum_by_unit(name, own)
        return list(self._layout.add(torch.cat(sums)).split([layer.width for layer in self._bound.layers]))
