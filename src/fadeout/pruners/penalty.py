"""A fade that acts on the gradients, before the step."""

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from fadeout.fades import learning_rate
from fadeout.pruners.bound_fade import BoundFade
from fadeout.structures.base import Marked, Target, flush_
from fadeout.torch_bridge.parameters import held_by
from fadeout.torch_bridge.sharding import gradient_of
from fadeout.torch_bridge.step_hooks import gradient_scale


class Penalty(BoundFade):
    """Before each step the gradient of a penalty on the targeted weights joins theirs, as in the paper."""

    blame = (
        ". The penalty that joins the gradient may be too strong: mode='implicit' cannot diverge, "
        "whatever its strength"
    )
    _chosen: Mapping[str, Target] = {}  # this step's targeted weights, from its begin to its end
    _warned = False

    def begin(self) -> None:
        self._chosen = self.targets(self._pruner.sparsity_now)

    def join(self, optimizer: Optimizer, wants_loss: bool) -> Tensor | None:
        pruner = self._pruner
        if wants_loss:  # a closure moves the weights and comes back, and the choice is that of the first time
            self._chosen = {n: Marked(c.mask(pruner.weight(n))) for n, c in self._chosen.items()}
        held = held_by([optimizer])
        groups, scale, loss = pruner.groups(), gradient_scale(optimizer), None
        for name, chosen in self._chosen.items():
            parameter = pruner.parameters[name]
            if id(parameter) not in held:
                continue
            if parameter.grad is not None and parameter.grad.is_sparse:
                raise ValueError(
                    f"the gradient of {name!r} is sparse, and a penalty on it would be dense: "
                    "use fadeout.Decay(..., mode='implicit')"
                )
            dose = self._fade.dose(self._clock.progress, self._clock.steps, groups[name])
            self._warn_of_divergence(optimizer, learning_rate(groups[name]) * dose)
            if groups[name].get("maximize", False):
                dose = -dose  # the optimizer climbs, and the penalty is still to fall
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            own = gradient_of(parameter)
            assert own is not None
            for mask, weight, gradient in chosen.parts(pruner.weight(name), own):
                targeted = torch.where(mask, weight, 0)
                gradient.add_(self._fade.gradient(targeted, dose * scale))
                if wants_loss and self._layout.owns(name):
                    value = self._fade.loss(targeted, dose)
                    loss = value if loss is None else loss + value.to(loss.device)
        return pruner._sum_over_processes(loss) if wants_loss else None

    def end(self) -> None:
        self._pruner.check_finite()
        for name, target in self._chosen.items():
            for mask, weight in target.parts(self._pruner.weight(name)):
                flush_(weight, mask)
        self._chosen = {}

    def _warn_of_divergence(self, optimizer: Optimizer, rate: float) -> None:
        if rate >= 2 and isinstance(optimizer, SGD) and not self._warned:
            self._warned = True
            warnings.warn(
                f"at step {self._clock.step} lr * strength * mu = {rate:.3g}: from 2 on, SGD overshoots and "
                "the targeted weights grow. Use fadeout.Decay(..., mode='implicit'), which cannot diverge",
                stacklevel=2,
            )
