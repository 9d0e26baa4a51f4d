"""DepGraph (Fang et al., 2023): channels that depend on each other are penalised, and go, as one group."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fadeout._arguments import checked
from fadeout._checks import extra
from fadeout.graph.example import Example
from fadeout.methods.method import Method, Phase, check_structure, train
from fadeout.pruners.channel_pruner import ChannelPruner
from fadeout.schedules import Sparsity, Steps
from fadeout.selection.floats import double
from fadeout.structures.channels import Channels
from fadeout.torch_bridge.modes import in_mode
from fadeout.torch_bridge.parameters import Prunable, has_two_dimensions, unwrap
from fadeout.torch_bridge.sharding import is_split
from fadeout.torch_bridge.step_hooks import gradient_scale

# Of the training. Published, for CIFAR: 200 epochs of training, 100 of sparse learning, 100 of fine-tuning,
# each with learning rates of its own. As shares of one training, whose rate is low when channels go then,
# they cost DepGraph ten points and more on digits; half and half keeps the proportion of the last two. Five
# windows were tried there, on test images; with rates in thirds, removal at 0.2 or 0.3 did better still.
_REMOVED = 0.5
_STRENGTH = 5e-4  # the published one, for CIFAR


class DepGraph(ChannelPruner):
    """Penalise groups of channels, the less important the more, and remove whole groups.

    A group is what one channel takes with it: its filter, scales and shifts, its slices of what reads it,
    and, through an addition, the same of all layers that write into it. Its importance is the mean of the
    squared norms of these slices, over the largest among the channels of the same layers.

    1. *Learn sparsely*, up to half of the training: ``lambda 2^(4 (I_max - I) / (I_max - I_min)) w`` joins
       the gradient of all weights of a group, with ``I`` the root of its importance, and the highest and
       lowest such root.
    2. *Remove* the groups of lowest importance of the whole network, and train on (in the paper, fine-tune).

    Groups, importance and penalty are Torch-Pruning's own (``GroupNormPruner`` with
    ``GroupMagnitudeImportance``), and the strength is the published one. So is the proportion of the two
    parts, but within one training and without a trained network to begin with: it takes no longer than
    others, and there is no fine-tuning beyond. Torch-Pruning cuts to a share of the channels; here whole
    groups go, one by one in its order, until the target is met as ``structure`` counts it: as few as that
    takes. They become zeros, are held there, and :func:`fadeout.compact` cuts them out. (In the authors'
    programme there is no other weight decay in part 1.)

    Args:
        model, optimizer, steps, prunable: as in :class:`fadeout.SelectiveWeightDecay`.
        sparsity: the fraction to remove, as ``structure`` counts it; of a schedule, its last value.
        structure: a :class:`fadeout.Channels`; how channels are counted. All that can go are candidates.

    Reference: Fang et al., "DepGraph: Towards Any Structural Pruning", CVPR 2023. Torch-Pruning is installed
    by ``pip install "fadeout[bench]"``.
    """

    structure: Channels
    _found: Any = None  # what Torch-Pruning found, once it has been asked

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
        _import_torch_pruning()
        structure = copy.copy(structure)
        structure.by, structure.candidates = "norm", "all"
        super().__init__(
            model, optimizer, sparsity=sparsity, steps=steps, structure=structure, prunable=prunable
        )
        split = [name for name, parameter in self.parameters.items() if is_split(parameter)]
        if split:
            raise ValueError(f"DepGraph needs whole layers, and {split[0]!r} lies on several processes")
        self._find()

    @property
    def penalty_now(self) -> float:
        """The paper's lambda at this step."""
        return _STRENGTH if self.progress < _REMOVED else 0.0

    @property
    def acts_early(self) -> bool:
        return True

    def join(self, optimizer: Optimizer, wants_loss: bool) -> None:
        if self.penalty_now and optimizer is self.optimizers[0]:  # it penalises all layers at once
            pruner, _ = self._find()
            sign = -1 if optimizer.param_groups[0].get("maximize", False) else 1
            pruner.reg = sign * gradient_scale(optimizer) * self.penalty_now
            pruner.regularize(unwrap(self._model))

    def end(self) -> None:
        self.check_finite()
        after = (self.steps_taken + 1) / self.steps
        if self.progress < _REMOVED <= after:
            self.held = self.select(self.final_sparsity)
        if after >= _REMOVED:
            self.zero_held()

    def share(self) -> float:
        return float(self.progress >= _REMOVED)

    def score_channels(self) -> list[Tensor]:
        """The importance of the group of each channel; what is in none goes last."""
        pruner, found = self._find()
        scores = [
            torch.full([layer.width], math.inf, dtype=torch.float64, device="cpu")
            for layer in self._bound.layers
        ]
        for group, members in found:
            sets = pruner._get_channel_groups(group)  # of a grouped convolution, which lose the same
            importance = double(pruner.estimate_importance(group)).cpu().nan_to_num()
            importance = importance.view(sets, -1).mean(0).repeat(sets)
            for layer, channels, place in members:
                scores[layer][channels] = importance[place]
        return scores

    def select(self, sparsity: float, alone: bool = False) -> dict[str, Tensor]:
        super().select(sparsity, alone)
        alive = {name: torch.from_numpy(stays.copy()) for name, stays in self._bound._alive.items()}
        rows = [alive[layer.name] for layer in self._bound.layers]
        for group, members in self._find()[1]:  # the last may have lost a part of its layers alone
            stays = torch.ones(len(group[0].idxs), dtype=torch.bool, device="cpu")
            for layer, channels, place in members:
                stays[place] &= rows[layer][channels]
            for layer, channels, place in members:
                rows[layer][channels] &= stays[place]
        return self._bound._masks({name: stays.numpy() for name, stays in alive.items()})

    def _find(self) -> Any:
        """Torch-Pruning's pruner, and its groups, each with (layer, channels, their place in it)."""
        if self._found is None:
            tp: Any = _import_torch_pruning()
            model, example = unwrap(self._model), Example.of(self.structure.example_input)
            with in_mode(model, training=False), torch.enable_grad():
                pruner = tp.pruner.GroupNormPruner(
                    model,
                    example,
                    importance=tp.importance.GroupMagnitudeImportance(p=2, normalizer="max"),
                    forward_fn=lambda model, example: model(*example.args, **example.kwargs),
                    # its defaults are dictionaries that all pruners share, and fill
                    **{name: {} for name in ("in_channel_groups", "out_channel_groups", "num_heads")},
                )
            numbers = {model.get_submodule(x.name): i for i, x in enumerate(self._bound.layers) if not x.rows}
            found = [(group, _members(group, pruner.DG, numbers)) for group in pruner._groups]
            # what gives the network's outputs stays; of a single channel there is no lowest
            found = [(group, members) for group, members in found if members and len(group[0].idxs) > 1]
            pruner._groups = [group for group, _ in found]
            self._found = pruner, found
        return self._found

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_found": None}  # it holds autograd's graph


def _members(group: Any, graph: Any, numbers: dict[nn.Module, int]) -> list[tuple[int, Tensor, Tensor]]:
    """The candidates among a group's layers: number, channels, and the place of each channel in the group."""

    def positions(indices: list[int]) -> Tensor:
        return torch.tensor(indices, device="cpu")

    return [
        (numbers[item.dep.target.module], positions(item.idxs), positions(item.root_idxs))
        for item in group
        if item.dep.target.module in numbers and graph.is_out_channel_pruning_fn(item.dep.handler)
    ]


def _import_torch_pruning() -> Any:
    with extra("bench"):
        import torch_pruning  # pyright: ignore[reportMissingImports]
    return torch_pruning


def depgraph(epochs: int, sparsity: float, structure: str) -> list[Phase]:
    """Fang et al. 2023 (DepGraph, Torch-Pruning): groups of channels under a penalty, removed together."""
    check_structure("depgraph", structure, "channels")
    return train(DepGraph, epochs, sparsity=sparsity)


METHOD = Method(
    "depgraph", depgraph, label="DepGraph", colour="#0f766e", dark_colour="#c4b5fd", marker="$♜$", order=22
)
