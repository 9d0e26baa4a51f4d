"""HESSO (Chen et al., 2024): in each of several periods, more channels are forgotten step by step."""

from typing import Any

import torch
from torch import Tensor

from fadeout.methods.method import Method, Phase, check_structure, train
from fadeout.pruners.channel_pruner import ChannelPruner
from fadeout.structures.base import Marked

_WINDOW = (0.1, 0.2)  # of the training: ten epochs of a hundred, and ten more, in the authors' examples
_PERIODS = 10


class HESSO(ChannelPruner):
    """Let the least salient channels of each period fade to zero along a straight line, and the others train.

    1. *Warm up*, for a tenth of the training.
    2. *Prune*, in ten periods, up to a fifth of it. A period begins with the saliency of each channel, from
       its weights ``x`` and the step ``d`` that the optimizer has just taken (the gradient, with momentum and
       decay): the mean of

           ``|x|``,  ``|x| / n``,  ``1 + cos(x, d)``,  ``|x . d|``,  ``(x . d)^2 / 2``,

       with ``n`` weights in a channel, each over its norm across all channels. The lowest join those that are
       redundant, so many that a tenth more of the target is reached. These train on, but after each step
       ``x <- x (r - 1) / r``, with ``r`` steps left in the period: at its end they are zero, and held there.
    3. *Train* what is left.

    Between the beginnings of periods, ``masks()`` ranks by the two magnitudes alone.

    Args:
        model, optimizer, steps, prunable: as in :class:`fadeout.SelectiveWeightDecay`.
        sparsity: the fraction to remove, as ``structure`` counts it.
        structure: a :class:`fadeout.Channels`; which channels can go, and how they are counted.

    >>> import fadeout
    >>> model = fadeout.models.smallcnn(norm=True)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> structure = fadeout.Channels(torch.zeros(1, 1, 8, 8))
    >>> pruner = HESSO(model, optimizer, sparsity=0.5, steps=400, structure=structure)
    >>> factors = []
    >>> for _ in range(100):
    ...     factors.append(round(pruner.factor_now, 4))
    ...     optimizer.zero_grad()
    ...     model(torch.randn(8, 1, 8, 8)).square().mean().backward()
    ...     optimizer.step()
    >>> factors[38:49]
    [1.0, 1.0, 0.75, 0.6667, 0.5, 0.0, 0.75, 0.6667, 0.5, 0.0, 0.75]
    >>> pruner.fade  # removal takes nothing
    0.0

    Reference: Chen et al., "HESSO: Towards Automatic Efficient and User Friendly Any Neural Network Training
    and Pruning", 2024.
    """

    _state_parts = (*ChannelPruner._state_parts, "fading")
    _before: dict[str, Tensor] | None = None  # the weights, in the step with which a period begins
    _fading: dict[str, Tensor] | None = None  # what has become redundant in this period

    @property
    def factor_now(self) -> float:
        """What a channel that fades is multiplied by at this step."""
        period, left = self._period(self.steps_taken)
        return (left - 1) / left if left > 0 else float(period == 0)

    @property
    def acts_early(self) -> bool:
        return True

    def open(self) -> None:
        step = self.steps_taken
        if self._period(step)[0] != self._period(step - 1)[0]:
            self._before = {name: self.weight(name).clone() for name in self._bound.fading}

    def end(self) -> None:
        self.check_finite()
        if self._before:
            pruned = self.held
            self.held = self.select(self.sparsity_now)
            self._fading = {n: g & ~pruned[n] if n in pruned else g for n, g in self.held.items()}
            self._before = None
        factor = self.factor_now
        for name, fading in (self._fading or {}).items():
            weight, gone = self.weight(name), self.held[name]
            weight.masked_fill_(gone & ~fading if factor else gone, 0)
            if factor:
                Marked(fading).scale_(weight, factor)

    def state_dict(self) -> dict[str, Any]:
        nothing = {name: torch.zeros_like(self.weight(name), dtype=torch.bool) for name in self.parameters}
        return {**super().state_dict(), "fading": self._distributed(self._fading or nothing)}

    def _read(self, state: dict[str, Any]) -> dict[str, Any]:
        return {**super()._read(state), "fading": self._blocks(state["fading"])}

    def _restore(self, parts: dict[str, Any]) -> None:
        super()._restore(parts)
        self._fading, self._before = parts["fading"], None

    def share(self) -> float:
        return self._period(self.steps_taken)[0] / _PERIODS

    def _period(self, step: int) -> tuple[int, int]:
        """The period of a step, from 1, and how many of its steps are left; before the first one it is 0."""
        first, last = (round(share * self.steps) for share in _WINDOW)
        length = max(last - first, 1)
        begun = step - first + 1
        if begun <= 0:
            return 0, 0
        period = min(-(-begun * _PERIODS // length), _PERIODS)
        return period, period * length // _PERIODS - begun + 1

    def score_channels(self) -> list[Tensor]:
        """The saliency of each channel."""
        names = list(self._bound.fading)
        x = self._before or {name: self.weight(name) for name in names}
        d = {name: x[name] - self.weight(name) for name in names}
        size = torch.cat(self.sum_by_channel(lambda name: torch.ones_like(x[name]), names))
        x_norm = torch.cat(self.sum_by_channel(lambda name: x[name].square(), names)).sqrt()
        d_norm = torch.cat(self.sum_by_channel(lambda name: d[name].square(), names)).sqrt()
        product = torch.cat(self.sum_by_channel(lambda name: x[name] * d[name], names))
        cosine = product / (x_norm * d_norm).clamp_min(1e-30)
        parts = [x_norm, x_norm / size, 1 + cosine, product.abs(), product.square() / 2]
        mean = torch.stack([part / part.norm().clamp_min(1e-30) for part in parts]).mean(0)
        return list(mean.clamp_min(0).split([layer.width for layer in self._bound.layers]))


def hesso(epochs: int, sparsity: float, structure: str) -> list[Phase]:
    """Chen et al. 2024 (HESSO): channels of low saliency fade to zero in ten periods, early in training."""
    check_structure("hesso", structure, "channels")
    return train(HESSO, epochs, sparsity=sparsity)


METHOD = Method(
    "hesso", hesso, label="HESSO", colour="#7a5c00", dark_colour="#f0b429", marker="$♦$", order=21
)
