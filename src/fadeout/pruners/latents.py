"""Latent weights: what the optimizer steps, while the network runs on their sparse form."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fadeout.fades import Latent
from fadeout.pruners.bound_fade import BoundFade
from fadeout.pruners.pruner import Pruner
from fadeout.selection import passes
from fadeout.structures.base import Target
from fadeout.torch_bridge.optimizers import is_schedule_free
from fadeout.torch_bridge.parameters import unwrap
from fadeout.torch_bridge.step_hooks import check_outside_backward, is_stepping
from fadeout.torch_bridge.submodules import has_kind
from fadeout.torch_bridge.tripwire import Tripwire


class Latents(BoundFade):
    """The latent weights of a network: in its parameters while an optimizer steps, beside them otherwise.

    What a schedule-free optimizer steps beside a parameter (its base) has latents too, and between steps the
    same part is left of them as of the weights.

    All is done inside an optimizer's hooks, where gradients are off.

    Args:
        pruner: whose weights these are.
        fade: what the network runs on, of latents and a threshold, and how slowly targeted latents move.
        calm: whether gradients of empty rows are scaled down; by default where a batch-norm would make them
            large.
    """

    blame = ", and the parameters hold the latent weights"
    _fade: Latent  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, pruner: Pruner, fade: Latent, calm: bool | None = None):
        super().__init__(pruner, fade)
        self.values: dict[str, Tensor] = {}
        """By name; none before the first step, when the weights are their own latents, or once settled."""
        self._bases: dict[str, Tensor] = {}
        self._held: dict[str, Tensor] = {}  # masks of what stays zero, once settled
        self._inside = False  # the parameters, as in a step
        self._entered = set[str]()  # what of them has latents that are newer than the values kept here
        self._targets: Mapping[str, Target] = {}
        self._thresholds: dict[str, float] = {}
        self._sparsity = 0.0  # of the targets
        self._left: dict[str, tuple[int, int]] = {}  # fingerprints of what was left in the parameters
        self._calms = has_kind(pruner._model, "batchnorm", "instancenorm") if calm is None else calm
        self._tripwire = Tripwire(unwrap(pruner._model), self.recover)

    # In a step ----------------------------------------------------------------------------------

    def open(self) -> None:
        self._tripwire.arm()
        self._enter()
        if self.values and not self._targets:  # they were loaded, and a closure will want to know the targets
            with self._clock.a_step_ago():  # at this one LAMP may look its shares up anew
                self._choose(self._sparsity, self._weights())

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """The sparse form in the parameters, for a closure that is evaluated in the middle of a step."""
        with torch.no_grad():
            weights = self._weights()
            moved = {name: weights[name].clone() for name in self._held or self._targets}
            for name in self._targets:
                self._entered.discard(name)
                self._write(name, weights[name], moved[name])
            for name, mask in self._held.items():
                weights[name].masked_fill_(mask, 0)
        self._tripwire.disarm()  # the network is sparse, and a compiled one takes no hooks
        try:
            yield
        finally:
            self._tripwire.arm()
            with torch.no_grad():
                weights = self._weights()
                for name, latent in moved.items():
                    weights[name].copy_(latent)
                self._entered.update(self._targets)

    def join(self, optimizer: Optimizer, wants_loss: bool) -> None:
        if self._calms:
            self._calm(self._pruner._gradients(optimizer))

    def between(self) -> None:
        weights = self._weights()
        self._damp(weights)
        self._rest(weights)

    def onward(self) -> None:
        check_outside_backward()
        self._tripwire.arm()
        self._enter()

    def end(self) -> None:
        pruner, weights = self._pruner, self._weights()
        progress, steps = self._clock.progress, self._clock.steps
        if self._held:
            pruner.check_finite()
            self._rest(weights)
            return
        pruner.groups()  # raises where an optimizer has lost a parameter
        self._damp(weights)
        self._choose(pruner._sparsity_at(self._fade.target(progress, steps)), weights)
        self._rest(weights)
        if self._fade.settles(progress, steps) and self._sparsity == pruner.final_sparsity:
            self._settle()

    def recover(self) -> None:
        if self._inside and not any(map(is_stepping, self._pruner.optimizers)):
            with torch.inference_mode(False):
                self._rest(self._weights())

    def look_for_settled(self) -> None:
        # weights of an earlier moment may have been loaded since they settled
        weights = self._weights()
        self._pruner._scores.gone = {name: mask & (weights[name] == 0) for name, mask in self._held.items()}

    # State --------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        pruner, settled = self._pruner, bool(self._held)
        weights, groups = self._weights(), pruner.groups()
        bases = {name: weight for name, weight in weights.items() if is_schedule_free(groups[name])}
        state = super().state()
        state["latents"] = pruner._distributed({} if settled else {**weights, **self.values})
        if bases:
            state["latent_bases"] = pruner._distributed({} if settled else {**bases, **self._bases})
        return {**state, "settled": pruner._distributed(self._held), "latent_sparsity": self._sparsity}

    def read(self, state: Mapping[str, Any]) -> dict[str, Any]:
        if not {"latents", "settled", "latent_sparsity"} <= state.keys():
            raise ValueError(
                "the state is that of another fade: it has none of Latent()'s latent weights. Pass the fade "
                "that it was saved with: in version 0.1 the default was fadeout.Progressive()"
            )
        blocks, begun = self._pruner._blocks, bool(state["step"])
        held = blocks(state["settled"])
        missing = [name for name in self._pruner._bound.fading if name not in state["latents"]]
        if missing and not held:
            raise ValueError(f"the state has no latent weights of {missing[0]!r}: it is not whole")
        return {
            **super().read(state),
            "latents": blocks(state["latents"]) if begun else {},
            "bases": blocks(state.get("latent_bases", {})) if begun else {},
            "held": held,
            "latent_sparsity": float(state["latent_sparsity"]),
        }

    def restore(self, parts: Mapping[str, Any]) -> None:
        """Go on with latents that were saved; the parameters hold their sparse form, or soon will."""
        super().restore(parts)
        self.values, self._bases, self._held = parts["latents"], parts["bases"], parts["held"]
        self._pruner._scores.gone = self._held
        self._sparsity = parts["latent_sparsity"]
        self._targets, self._left = {}, {}
        self._inside, self._entered = False, set()

    # Inside -------------------------------------------------------------------------------------

    def _weights(self) -> dict[str, Tensor]:
        """What the parameters hold: latents within a step, their sparse form between two."""
        return {name: self._pruner.weight(name) for name in self._pruner._bound.fading}

    def _enter(self) -> None:
        """Put the latents into the parameters, for a step."""
        self._inside, weights = True, self._weights()
        for name, latent in self.values.items():
            weight = weights[name]
            written_into = name in self._left and self._left[name] != _fingerprint(weight)
            if written_into:
                left = self._of(name, latent)
                written = weight != left.to(weight.dtype)
                for base, _ in self._based(name):  # optimizer.eval() and train() change the last bits
                    bound = 16 * torch.finfo(weight.dtype).eps * (left.abs() + base.abs())
                    written = (weight - left).abs() > bound
                latent.copy_(torch.where(written, weight, latent))
            weight.copy_(latent)
            for base, own in self._based(name):
                base.copy_(own)
            self._entered.add(name)

    def _calm(self, gradients: Mapping[str, Tensor]) -> None:
        """Scale the gradients of rows of which no weight is left down to those of others, where larger.

        A batch-norm divides by how much a channel varies. Of one that is always zero, gradients are hundreds
        of times those of others: its latents would outgrow all of the layer, and take the place of the rest.

            ``g <- g min(1, m / max |g|)``,  with ``m`` the mean of ``max |g|`` over rows that have weights.
        """
        targeted = {name: gradients[name] for name in self._targets if name in gradients}
        dense = {n: g for n, g in targeted.items() if not g.is_sparse and g.dim() > 1}
        if not dense:
            return
        sizes = self._layout.most_by_row({name: self.values[name] for name in dense})
        slopes = self._layout.most_by_row(dense)
        for name, gradient in dense.items():
            is_empty, slope = sizes[name] <= self._thresholds[name], slopes[name]
            usual = slope.masked_fill(is_empty, 0).sum() / (~is_empty).sum()  # NaN where all are
            scale = torch.where(is_empty & (slope > usual), usual / slope, 1)
            if not passes.reads_are_free(scale) or bool((scale < 1).any()):
                rows = self._layout.region(name, gradient).slices[0]
                own = scale[rows].to(gradient.device, gradient.dtype)
                gradient.mul_(own.view(-1, *[1] * (gradient.dim() - 1)))

    def _damp(self, weights: Mapping[str, Tensor]) -> None:
        """Take a part of the step back where a latent was targeted in it."""
        back = 1 - self._fade.pace(self._clock.progress)
        for name, target in self._targets.items() if back else ():
            latent = self.values[name]
            for now, before in ((weights[name], latent), *self._based(name)):
                target.pull_(latent, now, before, back)

    def _choose(self, sparsity: float, weights: Mapping[str, Tensor]) -> None:
        """Set what is targeted among the latents, which are in the parameters now."""
        targets = self.targets(sparsity)
        most = self._layout.most
        self._thresholds = {name: target.threshold(weights[name], most) for name, target in targets.items()}
        self._targets, self._sparsity = targets, sparsity

    def _rest(self, weights: Mapping[str, Tensor]) -> None:
        """Take the latents out of the parameters, and leave their sparse form there, until the next step.

        Ctrl-C may come at any point of it: to begin anew does what was left to be done.
        """
        for name, mask in self._held.items():
            for tensor in (weights[name], *self._pruner._base(name)):
                tensor.masked_fill_(mask, 0)
        for name, target in self._targets.items():
            weight = weights[name]
            if name in self._entered or name not in self.values:
                for base in self._pruner._base(name):
                    _copy(self._bases, name, base)
                _copy(self.values, name, weight)
                self._entered.discard(name)
            latent = self.values[name]
            self._write(name, weight, latent)
            self._left[name] = _fingerprint(weight)
            for base, own in self._based(name):
                base.copy_(own * torch.where(latent == 0, 1, weight / latent))
                base.masked_fill_(target.mask(latent), 0)
        self._inside = False
        self._tripwire.disarm()

    def _settle(self) -> None:
        """Fix what is targeted now: from here on the optimizer steps the sparse weights themselves."""
        self._held = {name: target.mask(self.values[name]) for name, target in self._targets.items()}
        self._pruner._scores.gone = self._held
        self.values, self._bases, self._targets = {}, {}, {}

    def _based(self, name: str) -> list[tuple[Tensor, Tensor]]:
        """What a schedule-free optimizer steps beside a parameter, and its latents."""
        return [(base, self._bases[name]) for base in self._pruner._base(name)] if name in self._bases else []

    def _write(self, name: str, weight: Tensor, latent: Tensor) -> None:
        self._targets[name].write(self._fade.sparse, latent, weight, self._thresholds[name])

    def _of(self, name: str, latent: Tensor) -> Tensor:
        """The sparse form of a parameter's latents."""
        weight = torch.empty_like(latent)
        self._write(name, weight, latent)
        return weight


def _copy(copies: dict[str, Tensor], name: str, tensor: Tensor) -> None:
    """Keep a tensor's numbers, in a copy that is made once, and anew where its type has become another."""
    if name in copies and copies[name].dtype == tensor.dtype:
        copies[name].copy_(tensor)
    else:
        copies[name] = tensor.clone()


def _fingerprint(tensor: Tensor) -> tuple[int, int]:
    """What tells whether a tensor has been written into: its version, and the sum of its bits.

    The version does not count what is written through ``parameter.data``. Bits are added up as integers that
    overflow, in a quarter of the time of a copy; not where one would have to wait for a device.
    """
    if not passes.reads_are_free(tensor):
        return tensor._version, 0
    kind = _INTEGERS[tensor.dtype.itemsize]
    return tensor._version, int(tensor.view(kind).sum(dtype=kind))


_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes that they take
