"""RigL: sparse from the start, with connections that move to where the gradient is (Evci et al., 2020)."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fadeout._arguments import Only, Share, checked
from fadeout.methods.method import Method, Phase, check_structure, train
from fadeout.pruners.mask_pruner import MaskPruner
from fadeout.schedules import Sparsity, Steps
from fadeout.selection.search import Finder, find_lowest
from fadeout.structures.base import Structure
from fadeout.torch_bridge.parameters import Prunable, has_two_dimensions, momenta
from fadeout.torch_bridge.sharding import block_of


def erk(shapes: Mapping[str, Sequence[int]], left: int) -> dict[str, int]:
    """The Erdős-Rényi-kernel distribution: how many weights each layer keeps.

    A layer of the shape ``(n_1, ..., n_d)`` keeps a number in proportion to ``n_1 + ... + n_d``; one that has
    fewer than that stays dense, and the others share what it cannot take.

    Args:
        shapes: of the layers, by name.
        left: how many weights are left in all; the parts are rounded such that they add up to it.

    >>> erk({"first": (2, 3), "second": (10, 20)}, 41)
    {'first': 6, 'second': 35}
    """
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    kept: dict[str, float] = {}
    while len(kept) < len(sizes):
        rest = {name: sum(shape) for name, shape in shapes.items() if name not in kept}
        share = (left - sum(kept.values())) / sum(rest.values())
        full = {name: sizes[name] for name, width in rest.items() if share * width > sizes[name]}
        kept |= full or {name: share * width for name, width in rest.items()}
    counts = {name: math.floor(kept[name]) for name in shapes}
    cut = sorted(shapes, key=lambda name: counts[name] - kept[name])  # those that lost most of a weight first
    return counts | {name: counts[name] + 1 for name in cut[: left - sum(counts.values())]}


_Steps = Annotated[int, Only(lambda n: n > 0, "the whole number of steps from one update to the next")]
_Seed = Annotated[int, Only(lambda n: -(2**63) <= n < 2**64, "a whole number of 64 bits")]


class RigL(MaskPruner):
    """Train a sparse network, and move its connections while it trains.

    At the start a random mask leaves each layer as many weights as :func:`erk` says (what is zero already
    goes first). Every ``every`` steps, until the fraction ``until`` of the training, at step ``t`` of ``T``
    steps in all, in each layer with ``n`` weights left

    - ``k = alpha / 2 (1 + cos(pi t / (until T))) n`` weights of lowest magnitude are dropped, and
    - the ``k`` of those without a connection whose gradient is largest grow, from zero.

    Such a step moves connections alone: the gradient is not used otherwise. ``alpha`` and ``every`` are
    published, ``until`` is rounded (0.77 on CIFAR, 0.78 on ImageNet). As published, it starts from the dense
    network's initial weights, not rescaled: without norms, a deep network of very few random connections
    hardly passes a signal on at first. (At 99 % of ResNet-50 the authors leave the first layer dense, and
    out of the count. Here all weights count, as for other methods: of LeNet-5 it would take a quarter of
    what is left.)

    Args:
        model, optimizer, steps, prunable: as in :class:`fadeout.SelectiveWeightDecay`.
        sparsity: the fraction to remove; of a schedule, its last value.
        structure: :class:`fadeout.Elements`, single weights over the whole network; there is no other.
        alpha: the fraction of a layer's weights that the first update moves.
        every: the steps from one update to the next.
        until: the fraction of the training in which there are updates.
        seed: of the mask at the start.

    >>> model = nn.Linear(10, 10)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> pruner = RigL(model, optimizer, sparsity=0.9, steps=100)
    >>> int(model.weight.count_nonzero())
    10
    >>> pruner.masks()
    Masks(1 parameters, 10 of 100 weights left)

    Reference: Evci et al., "Rigging the Lottery: Making All Tickets Winners", ICML 2020.
    """

    @checked
    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        sparsity: Sparsity,
        steps: Steps,
        structure: Structure | None = None,
        prunable: Prunable = has_two_dimensions,
        alpha: Share = 0.3,
        every: _Steps = 100,
        until: Share = 0.75,
        seed: _Seed = 0,
    ):
        if structure is not None and getattr(structure, "scope", "") != "network":
            raise ValueError(
                f"RigL prunes single weights, and shares them out among the layers itself: structure is "
                f"fadeout.Elements(), got {structure!r}"
            )
        self.alpha, self.every, self.until = alpha, every, until
        super().__init__(
            model, optimizer, sparsity=sparsity, steps=steps, structure=structure, prunable=prunable
        )
        sizes = {name: parameter.numel() for name, parameter in self.parameters.items()}
        total = sum(sizes.values())
        shapes = {name: parameter.shape for name, parameter in self.parameters.items()}
        self._left = erk(shapes, total - round(self.final_sparsity * total))
        goes = {name: sizes[name] - left for name, left in self._left.items()}
        self.held = self._lowest(self._random(seed), goes)
        self.zero_held()

    @property
    def sparsity_now(self) -> float:
        """The fraction that is held at zero: the same from the first step to the last."""
        return self.final_sparsity

    @property
    def acts_early(self) -> bool:
        return True

    def join(self, optimizer: Optimizer, wants_loss: bool) -> None:
        step, last = self.steps_taken, self.until * self.steps
        if step % self.every or step >= last:
            self.zero_gradients(optimizer)
            return
        self._move(optimizer, self.alpha / 2 * (1 + math.cos(math.pi * step / last)))
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def end(self) -> None:
        self.zero_held()

    def _move(self, optimizer: Optimizer, fraction: float) -> None:
        """Drop a fraction of each layer's connections, and grow as many."""
        self.check_finite()
        slopes = {n: g.to_dense().abs().nan_to_num() for n, g in self._gradients(optimizer).items()}
        counts = {name: int(fraction * self._left[name]) for name in slopes}
        gone = dict(self.held)
        sizes = {n: self.weight(n).abs().masked_fill(gone[n], math.inf) for n in slopes}
        dropped = self._lowest(sizes, counts)
        stays = {name: ~(gone[name] | dropped[name]) for name in slopes}
        grown = self._lowest(
            {n: (-slope).masked_fill(stays[n], math.inf) for n, slope in slopes.items()}, counts
        )
        for name in slopes:
            for momentum in momenta(optimizer, self.parameters[name]):
                momentum.masked_fill_(gone[name] & grown[name], 0)  # one that was only just dropped goes on
            gone[name] = ~(stays[name] | grown[name])
        self.held = gone

    def _lowest(self, scores: Mapping[str, Tensor], counts: Mapping[str, int]) -> dict[str, Tensor]:
        """Mark so many of lowest score in each parameter."""
        finders = [Finder(shards=self._layout.shards([name])) for name in scores]
        groups, ks = [[score] for score in scores.values()], [counts[name] for name in scores]
        lowest = find_lowest(finders, groups, ks, self._layout.total)
        return {name: one.mask(0, scores[name]) for name, one in zip(scores, lowest, strict=True)}

    def _random(self, seed: int) -> dict[str, Tensor]:
        """Random scores, the same on all processes; lowest where weights are zero, as after a resumption."""
        generator, scores = torch.Generator("cpu").manual_seed(seed), {}
        for name, parameter in self.parameters.items():
            weight = self.weight(name)
            drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float32, device="cpu")
            scores[name] = block_of(drawn, parameter).to(weight.device) - (weight == 0).float()
        return scores


def rigl(epochs: int, sparsity: float, structure: str, seed: int) -> list[Phase]:
    """Evci et al. 2020: sparse from the start, with connections that move to where the gradient is (RigL)."""
    check_structure("rigl", structure, "elements")
    return train(RigL, epochs, sparsity=sparsity, seed=seed)


METHOD = Method("rigl", rigl, label="RigL", colour="#915b01", dark_colour="#ffb344", marker="8", order=6)
