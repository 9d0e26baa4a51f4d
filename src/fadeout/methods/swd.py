"""Selective weight decay (Tessier et al., 2022)."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from fadeout._arguments import checked
from fadeout.criteria import Criterion
from fadeout.fades import Decay, Fade, Latent, learning_rate
from fadeout.masks import Masks
from fadeout.methods.method import Method, Phase, train
from fadeout.pruners.latents import Latents
from fadeout.pruners.pruner import Pruner
from fadeout.schedules import Schedule, Sparsity, Steps, exponential
from fadeout.structures.base import Marked, Structure, Target, change_, flush_
from fadeout.structures.elements import Elements
from fadeout.torch_bridge.optimizers import is_schedule_free
from fadeout.torch_bridge.parameters import Prunable, has_two_dimensions, held_by, unwrap
from fadeout.torch_bridge.sharding import gradient_of
from fadeout.torch_bridge.step_hooks import check_outside_backward, gradient_scale, is_stepping
from fadeout.torch_bridge.submodules import has_kind
from fadeout.torch_bridge.tripwire import Tripwire


class SelectiveWeightDecay(Pruner):
    """Fade the weights that would be pruned now, at every step, until nothing is left to prune.

    At each step ``w*``, the ``round(sparsity * n)`` prunable weights of lowest score, fade: with ``Decay``,
    the paper's, the loss gains ``a mu / 2 * sum(w*^2)``; with ``Progressive`` a targeted weight is multiplied
    by a factor of progress alone; with ``Latent``, the default for single weights, the network runs on what a
    threshold leaves of dense latent weights. A weight that is no longer targeted recovers.

    It acts through the optimizer's own step hooks, so the training loop stays as it is.

    Args:
        model: the network, wrapped (DDP, ``torch.compile``) or not.
        optimizer: the optimizer that trains it, or a list: the pruner then acts after the last has stepped.
        sparsity: the fraction to remove, in (0, 1); or a schedule of progress. Required, unless the structure
            says it: ``Channels(example_input, faster=4)``.
        steps: the optimizer steps over which the fade completes, usually those of the whole training.
        structure: the unit that is pruned as a whole: single weights by default.
        criterion: which go first: any callable (weight, gradient) -> score; by default what suits structure
            and fade: the magnitude, and with ``Latent`` on a network with norms ``criteria.lamp``.
        fade: how they go: ``Latent()``, ``Progressive()`` or ``Decay(...)``; by default the structure's own,
            ``Latent()`` for single weights and ``Progressive()`` for channels.
        prunable: which parameters take part: a predicate on (name, parameter), or names; by default
            weights of two or more dimensions. Only those that the optimizer holds and trains.

    >>> import fadeout
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Linear(10, 10)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> pruner = fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.9, steps=100)
    >>> for _ in range(100):
    ...     optimizer.zero_grad()
    ...     model(torch.randn(8, 10)).square().mean().backward()
    ...     optimizer.step()
    >>> pruner.fade  # removal takes nothing
    0.0
    >>> pruner.remove()
    Masks(1 parameters, 10 of 100 weights left)
    """

    _state_parts = (*Pruner._state_parts, "pending")
    _default_structure = Elements
    _latents: Latents | None = None

    @checked
    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        sparsity: Sparsity | None = None,
        steps: Steps,
        structure: Structure | None = None,
        criterion: Criterion | None = None,
        fade: Fade | None = None,
        prunable: Prunable = has_two_dimensions,
    ):
        structure = Elements() if structure is None else structure
        self._fade = structure.fade if fade is None else fade
        self._chosen: Mapping[str, Target] = {}  # this step's targeted weights, from its begin to its end
        self._pending: dict[str, float] = {}  # doses too small for the dtype of a parameter
        self._warned = False
        self._calms = False  # empty channels, where a norm would divide by how little they vary
        self._sparsity_before = 0.0  # of the latents, at the end of the last step
        super().__init__(
            model,
            optimizer,
            sparsity=sparsity,
            steps=steps,
            structure=structure,
            criterion=structure.criterion_for(model, self._fade) if criterion is None else criterion,
            prunable=prunable,
        )
        if isinstance(self._fade, Latent):
            self._latents = Latents(self.weight, self._layout, self._fade, self._base)
            self._tripwire = Tripwire(unwrap(model), self._recover)
            self._calms = has_kind(model, "batchnorm", "instancenorm")

    @property
    def factor_now(self) -> float:
        """What a targeted weight is multiplied by at this step: the smallest factor of all groups.

        For ``Decay`` in gradient mode it is that of plain SGD, ``1 - lr a mu``; it is NaN for penalties
        that subtract instead.
        """
        groups = {id(group): group for group in self.groups().values()}.values()
        return min(self._fade.factor(self.progress, self.steps, group) for group in groups)

    def _figures(self) -> dict[str, str]:
        return {**super()._figures(), "fade": str(self._fade)}

    @property
    def acts_early(self) -> bool:
        return self._fade.on_gradient or self._fade.latent or super().acts_early

    def open(self) -> None:
        if self._latents is not None:
            self._tripwire.arm()
            self._latents.enter()
            if self._latents.restored:  # what was targeted is found again, as a closure will want to know it
                with self._clock.a_step_ago():  # at this one LAMP may look its shares up anew
                    self._latents.choose(self._affected(self._sparsity_before))

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        if self._latents is None:
            yield
            return
        with self._latents.evaluation():
            self._tripwire.disarm()  # the network is sparse, and a compiled one takes no hooks
            try:
                yield
            finally:
                self._tripwire.arm()

    def begin(self) -> None:
        super().begin()
        if self._fade.on_gradient:
            self._chosen = self._affected(self.sparsity_now)

    def join(self, optimizer: Optimizer, wants_loss: bool) -> Tensor | None:
        if self._latents is not None and self._calms:
            self._latents.calm(self._gradients(optimizer))
        if not self._fade.on_gradient:
            return None
        if wants_loss:  # a closure moves the weights and comes back, and the choice is that of the first time
            self._chosen = {n: Marked(c.mask(self.weight(n))) for n, c in self._chosen.items()}
        held = held_by([optimizer])
        groups, scale, loss = self.groups(), gradient_scale(optimizer), None
        for name, chosen in self._chosen.items():
            parameter = self.parameters[name]
            if id(parameter) not in held:
                continue
            if parameter.grad is not None and parameter.grad.is_sparse:
                raise ValueError(
                    f"the gradient of {name!r} is sparse, and a penalty on it would be dense: "
                    "use fadeout.Decay(..., mode='implicit')"
                )
            dose = self._fade.dose(self.progress, self.steps, groups[name])
            self._warn_of_divergence(optimizer, learning_rate(groups[name]) * dose)
            if groups[name].get("maximize", False):
                dose = -dose  # the optimizer climbs, and the penalty is still to fall
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            own = gradient_of(parameter)
            assert own is not None
            for mask, weight, gradient in chosen.parts(self.weight(name), own):
                targeted = torch.where(mask, weight, 0)
                gradient.add_(self._fade.gradient(targeted, dose * scale))
                if wants_loss and self._layout.owns(name):
                    value = self._fade.loss(targeted, dose)
                    loss = value if loss is None else loss + value.to(loss.device)
        return self._sum_over_processes(loss) if wants_loss else None

    def between(self) -> None:
        if self._latents is not None:
            self._latents.damp(self.progress)
            self._latents.rest()
            self._tripwire.disarm()

    def onward(self) -> None:
        if self._latents is not None:
            check_outside_backward()
            self._tripwire.arm()
            self._latents.enter()

    def end(self) -> None:
        if self._fade.on_gradient:
            self.check_finite()
            for name, target in self._chosen.items():
                for mask, weight in target.parts(self.weight(name)):
                    flush_(weight, mask)
            self._chosen = {}
        elif self._latents is not None and self._latents.held:
            self.check_finite()
            self._latents.rest()
        else:
            clock = self._clock
            dose = self._fade.now(clock, self.groups())  # how many, and how strongly
            sparsity = self._sparsity_at(dose.share)
            if self._latents is not None:
                self._latents.damp(clock.progress)
            targets = self._affected(sparsity)  # which
            if self._latents is not None:
                self._latents.leave(targets)
                self._sparsity_before = sparsity
                if self._fade.settles(clock.progress, clock.steps) and sparsity == self.final_sparsity:
                    self._latents.settle()
                    self._scores.gone = self._latents.held
            else:
                for name, target in targets.items():
                    self._shrink(name, target, dose.amounts[name])
        if self._latents is not None:
            self._tripwire.disarm()

    def _recover(self) -> None:
        """Leave the sparse form in the parameters after a step that an exception, or Ctrl-C, has ended."""
        if self._latents is None or not self._latents.inside or any(map(is_stepping, self.optimizers)):
            return
        with torch.inference_mode(False):
            self._latents.rest()
        self._tripwire.disarm()

    def detach(self) -> None:
        self._recover()
        super().detach()

    def masks(self) -> Masks:
        self._recover()
        if self._latents is not None:  # weights of an earlier moment may have been loaded since they settled
            held = self._latents.held
            self._scores.gone = {name: mask & (self.weight(name) == 0) for name, mask in held.items()}
        return super().masks()

    def state_dict(self) -> dict[str, Any]:
        self._recover()
        state = super().state_dict()
        state["pending"] = {name: self._pending.get(name, 0.0) for name in self.parameters}
        if self._latents is not None:
            weights = {name: self.weight(name) for name in self._bound.fading}
            held, values, groups = self._latents.held, self._latents.values, self.groups()
            bases = {name: weight for name, weight in weights.items() if is_schedule_free(groups[name])}
            state["latents"] = self._distributed({} if held else {**weights, **values})
            if bases:
                state["latent_bases"] = self._distributed({} if held else {**bases, **self._latents.bases})
            state["settled"] = self._distributed(held)
            state["latent_sparsity"] = self._sparsity_before
        return state

    def _read(self, state: dict[str, Any]) -> dict[str, Any]:
        if self._latents is None and "latents" in state:
            raise ValueError(
                f"the state is that of another fade: it has latent weights, and this pruner {self._fade}. "
                "Pass the fade that it was saved with, fadeout.Latent()"
            )
        if self._latents is not None and not {"latents", "settled", "latent_sparsity"} <= state.keys():
            raise ValueError(
                "the state is that of another fade: it has none of Latent()'s latent weights. Pass the fade "
                "that it was saved with: in version 0.1 the default was fadeout.Progressive()"
            )
        parts = super()._read(state)
        if self._latents is not None:
            parts["latents"] = self._blocks(state["latents"]) if parts["step"] else {}
            parts["bases"] = self._blocks(state.get("latent_bases", {})) if parts["step"] else {}
            parts["held"] = self._blocks(state["settled"])
            parts["latent_sparsity"] = float(state["latent_sparsity"])
            missing = [name for name in self._bound.fading if name not in state["latents"]]
            if missing and not parts["held"]:
                raise ValueError(f"the state has no latent weights of {missing[0]!r}: it is not whole")
        return {**parts, "pending": {name: float(dose) for name, dose in state["pending"].items() if dose}}

    def _restore(self, parts: dict[str, Any]) -> None:
        super()._restore(parts)
        self._pending = parts["pending"]
        if self._latents is not None:
            self._latents.restore(parts["latents"], parts["bases"], parts["held"])
            self._scores.gone = parts["held"]
            self._sparsity_before = parts["latent_sparsity"]

    def share(self) -> float:
        return self._fade.target(self.progress, self.steps)

    def _sparsity_at(self, share: float) -> float:
        if callable(self.sparsity):
            return super()._sparsity_at(share)
        grows = self.structure.gradual or self._fade.latent  # under a threshold nothing fades slowly
        return self._fade.targeted(self.sparsity, share if grows else 1.0)

    def _check_groups(self, groups: dict[str, dict[str, Any]]) -> None:
        for name, group in groups.items():
            self._fade.check(group, self._label(name, group))

    def _label(self, name: str, group: dict[str, Any]) -> str:
        for optimizer in self.optimizers:
            for number, other in enumerate(optimizer.param_groups):
                if other is group:
                    return f"parameter group {number} of {type(optimizer).__name__} (it holds {name!r})"
        raise AssertionError(f"no optimizer holds the group of {name!r}")

    def _affected(self, sparsity: float) -> Mapping[str, Target]:
        targets = self._choose(sparsity)
        if self._fade.selective:
            return targets
        return {name: Marked(torch.ones_like(self.weight(name), dtype=torch.bool)) for name in targets}

    def _shrink(self, name: str, target: Target, dose: float) -> None:
        weight = self.weight(name)
        if weight.dtype.itemsize < 4:
            dose = self._representable(name, target, dose)
            if not dose:
                return
        for base in self._base(name):  # first, while the weights still say which are targeted
            for mask, _, own in target.parts(weight, base):
                own.copy_(torch.where(mask, self._fade.shrink(own, dose), own))
                flush_(own, mask)
        factor = self._fade.multiplier(dose)
        if factor is None:
            change_(target, weight, lambda wide: self._fade.shrink(wide, dose))
        else:
            target.scale_(weight, factor)

    def _representable(self, name: str, target: Target, dose: float) -> float:
        """Save up doses that a parameter below float32 cannot represent: 0.999 w is w in bfloat16."""
        weight = self.weight(name)
        dose = self._fade.add(self._pending.pop(name, 0.0), dose)
        sizes = [torch.where(mask, w, 0).abs().amax() for mask, w in target.parts(weight) if w.numel()]
        largest = self._layout.most(float(torch.stack(sizes).amax()) if sizes else 0.0)
        exact = torch.tensor(largest, dtype=torch.float64, device="cpu")
        change = largest - float(self._fade.shrink(exact, dose))
        if change < 8 * torch.finfo(weight.dtype).eps * largest:
            self._pending[name] = dose
            return 0.0
        return dose

    def _warn_of_divergence(self, optimizer: Optimizer, rate: float) -> None:
        if rate >= 2 and isinstance(optimizer, SGD) and not self._warned:
            self._warned = True
            warnings.warn(
                f"at step {self.steps_taken} lr * strength * mu = {rate:.3g}: from 2 on, SGD overshoots and "
                "the targeted weights grow. Use fadeout.Decay(..., mode='implicit'), which cannot diverge",
                stacklevel=2,
            )

    def _blame(self) -> str:
        if self._latents is not None:
            return ", and the parameters hold the latent weights"
        if not self._fade.on_gradient:
            return ""
        return (
            ". The penalty that joins the gradient may be too strong: mode='implicit' cannot diverge, "
            "whatever its strength"
        )


# As a method of an experiment -------------------------------------------------------------------------------

Low = Annotated[float | None, "the strength at the start; by default the paper's for such a network and data"]
High = Annotated[float | None, "the strength at the end; by default the paper's"]
Mu = Annotated[float | None, "the decay that the strength multiplies; by default the weight decay"]


def swd(
    epochs: int,
    sparsity: float,
    model: str,
    data: str,
    structure: str,
    a_min: Low = None,
    a_max: High = None,
    mu: Mu = None,
) -> list[Phase]:
    """Tessier et al. 2022: selective weight decay as published, with ``a`` from ``a_min`` to ``a_max``."""
    strength = growing_strength(a_min, a_max, f"{model} on {data}, {structure}")
    return train(SelectiveWeightDecay, epochs, sparsity=sparsity, fade=Decay(strength, weight_decay=mu))


def growing_strength(a_min: float | None, a_max: float | None, what: str) -> Schedule:
    """The paper's ``a``; it has published none for some networks and data, and there it must be given."""
    if a_min is None or a_max is None:
        raise ValueError(
            f"the paper names no strength for {what}: pass --a-min and --a-max, or take the method auto, "
            "which needs none"
        )
    return exponential(a_min, a_max)


SWD = Method("swd", swd, label="SWD", colour="#04955e", dark_colour="#5eca92", marker="D", order=6)
