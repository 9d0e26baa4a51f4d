"""Latent weights: what the optimizer steps, while the network runs on their sparse form."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from fadeout.fades import Latent
from fadeout.selection import passes
from fadeout.structures.base import Target
from fadeout.torch_bridge.sharding import Layout


class Latents:
    """The latent weights of some parameters: in these while an optimizer steps, beside them at other times.

    All is done inside an optimizer's hooks, where gradients are off.

    Args:
        weight: gives this process's block of a parameter, by name.
        layout: which process has which of them.
        fade: what the network runs on, of latents and a threshold, and how slowly targeted latents move.
        base: what a schedule-free optimizer steps beside a parameter, by name. It has latents too, and
            between steps the same part is left of them as of the weights.
    """

    def __init__(
        self,
        weight: Callable[[str], Tensor],
        layout: Layout,
        fade: Latent,
        base: Callable[[str], list[Tensor]] = lambda name: [],
    ):
        self._weight, self._layout, self._fade, self._base = weight, layout, fade, base
        self.values: dict[str, Tensor] = {}
        """By name; none before the first step, when the weights are their own latents, or once settled."""
        self.bases: dict[str, Tensor] = {}
        """Those of what a schedule-free optimizer steps beside the weights; none for other optimizers."""
        self.held: dict[str, Tensor] = {}
        """Masks of what stays zero, once settled."""
        self.inside = False  # the parameters, as in a step
        self._entered = set[str]()  # what of them has latents that are newer than the values kept here
        self._targets: Mapping[str, Target] = {}
        self._thresholds: dict[str, float] = {}
        self._left: dict[str, tuple[int, int]] = {}  # fingerprints of what was left in the parameters

    def enter(self) -> None:
        """Put the latents into the parameters, for a step."""
        self.inside = True
        for name, latent in self.values.items():
            weight = self._weight(name)
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

    def calm(self, gradients: Mapping[str, Tensor]) -> None:
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

    def damp(self, progress: float) -> None:
        """Take a part of the step back where a latent was targeted in it."""
        back = 1 - self._fade.pace(progress)
        for name, target in self._targets.items() if back else ():
            latent = self.values[name]
            for now, before in ((self._weight(name), latent), *self._based(name)):
                target.pull_(latent, now, before, back)

    def leave(self, targets: Mapping[str, Target]) -> None:
        """Take the latents out of the parameters after a step, and leave their sparse form there."""
        self.choose(targets)
        self.rest()

    def rest(self) -> None:
        """The same with what was targeted before, until :meth:`enter`; what has settled is set to zero.

        Ctrl-C may come at any point of it: to begin anew does what was left to be done.
        """
        for name, mask in self.held.items():
            for tensor in (self._weight(name), *self._base(name)):
                tensor.masked_fill_(mask, 0)
        for name, target in self._targets.items():
            weight = self._weight(name)
            if name in self._entered or name not in self.values:
                for base in self._base(name):
                    _copy(self.bases, name, base)
                _copy(self.values, name, weight)
                self._entered.discard(name)
            latent = self.values[name]
            self._write(name, weight, latent)
            self._left[name] = _fingerprint(weight)
            for base, own in self._based(name):
                base.copy_(own * torch.where(latent == 0, 1, weight / latent))
                base.masked_fill_(target.mask(latent), 0)
        self.inside = False

    def settle(self) -> None:
        """Fix what is targeted now: from here on the optimizer steps the sparse weights themselves."""
        held = {name: target.mask(self.values[name]) for name, target in self._targets.items()}
        self.held, self.values, self.bases, self._targets = held, {}, {}, {}

    def choose(self, targets: Mapping[str, Target]) -> None:
        """Set what is targeted among the latents, which are in the parameters now."""
        thresholds = {
            name: target.threshold(self._weight(name), self._layout.most) for name, target in targets.items()
        }
        self._targets, self._thresholds = targets, thresholds

    @property
    def restored(self) -> bool:
        """Whether they were loaded, and nothing has been chosen since."""
        return bool(self.values) and not self._targets

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """The sparse form in the parameters, for a closure that is evaluated in the middle of a step."""
        with torch.no_grad():
            moved = {name: self._weight(name).clone() for name in self.held or self._targets}
            for name in self._targets:
                self._entered.discard(name)
                self._write(name, self._weight(name), moved[name])
            for name, mask in self.held.items():
                self._weight(name).masked_fill_(mask, 0)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, latent in moved.items():
                    self._weight(name).copy_(latent)
                self._entered.update(self._targets)

    def restore(self, values: dict[str, Tensor], bases: dict[str, Tensor], held: dict[str, Tensor]) -> None:
        """Go on with latents that were saved; the parameters hold their sparse form, or soon will."""
        self.values, self.bases, self.held, self._targets, self._left = values, bases, held, {}, {}
        self.inside, self._entered = False, set()

    def _based(self, name: str) -> list[tuple[Tensor, Tensor]]:
        """What a schedule-free optimizer steps beside a parameter, and its latents."""
        return [(base, self.bases[name]) for base in self._base(name)] if name in self.bases else []

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
