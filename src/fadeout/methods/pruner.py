"""What all pruners share: they act through the optimizer's step hooks, count steps and end in masks."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fadeout import criteria
from fadeout._checks import as_list, checked_sparsity, checked_steps, in_range
from fadeout.criteria import Criterion, check_elementwise
from fadeout.masks import Masks
from fadeout.methods.scores import looks_at_gradients, scores_of, widened
from fadeout.schedules import Schedule, as_schedule
from fadeout.structures.channels import Channels
from fadeout.structures.elements import BoundElements, Elements
from fadeout.structures.targets import Marked, Target
from fadeout.torch_bridge.parameters import Prunable, has_two_dimensions, held_by
from fadeout.torch_bridge.sharding import block_of, distributed_as, local, whole
from fadeout.torch_bridge.step_hooks import StepHooks, gradient_scale

_VERSION = 1


class Pruner(ABC):
    """The base of pruners that act while the network trains. See :class:`SelectiveWeightDecay`.

    A subclass says what a step does to the weights (:meth:`end`), and perhaps to the gradients
    (:meth:`join`).
    """

    _state_parts: tuple[str, ...] = ("version", "step", "steps", "sparsity", "shapes", "scores")

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        sparsity: float | Schedule,
        steps: int,
        structure: Elements | Channels | None = None,
        criterion: Criterion = criteria.magnitude,
        prunable: Prunable = has_two_dimensions,
    ):
        self.sparsity = checked_sparsity(sparsity)
        self.steps = checked_steps(steps)
        self.structure = Elements() if structure is None else structure
        if not callable(criterion):
            raise ValueError(f"criterion is a callable (weight, gradient) -> score, got {criterion!r}")
        self.criterion = criterion
        self._optimizers = as_list(optimizer)
        self._bound = self.structure.bind(model, self._optimizers, prunable)
        self._bound.check(self._final_sparsity)
        self.parameters = self._bound.parameters
        self._layout = self._bound.layout
        if self._layout.sharded:
            check_elementwise(criterion)
        self._layout.check_same((self.steps, self._final_sparsity), "steps or sparsity")
        # Single weights by their magnitude, the usual case, need neither scores nor masks.
        quick = type(self._bound) is BoundElements and criterion is criteria.magnitude
        self._quick = cast(BoundElements, self._bound) if quick else None
        if self._quick:
            self._quick.steps = self.steps
        self._step = 0
        self._kept_scores: dict[str, Tensor] = {}
        self._hooks: StepHooks | None = None
        self._check_groups(self._groups())
        self._hooks = StepHooks(self._optimizers, self, self._looks_ahead)

    # What a subclass fills in -------------------------------------------------------------------

    def begin(self) -> None:
        """The gradients of a step are ready."""
        if self._needs_gradient:
            self._keep_scores()

    def join(self, optimizer: Optimizer, wants_loss: bool) -> Tensor | None:
        """One optimizer is about to use its gradients."""
        return None

    @abstractmethod
    def end(self) -> None:
        """All optimizers have stepped."""

    def _check_groups(self, groups: dict[str, dict[str, Any]]) -> None:
        """Raise where a parameter's group lacks what the pruner needs."""
        return None

    def _growth(self) -> float:
        """The fraction of the final target that is targeted at this step."""
        return 1.0

    # Figures for a progress display -------------------------------------------------------------

    @property
    def progress(self) -> float:
        """How far the fade is: 0 before the first step, ``s / steps`` after ``s`` steps, 1 at most."""
        return min(self._step / self.steps, 1.0)

    @property
    def sparsity_now(self) -> float:
        """The fraction that is targeted at this step: it grows, unless ``sparsity`` is a schedule."""
        target = in_range(as_schedule(self.sparsity)(self.progress), self.progress)
        return target if callable(self.sparsity) else target * self._growth()

    @property
    @abstractmethod
    def factor_now(self) -> float:
        """What a targeted weight is multiplied by at this step."""

    @property
    def fade(self) -> float:
        """The norm of what removal would take now, over the norm of what would stay."""
        return self._fade_under(self.masks())

    # Removal ------------------------------------------------------------------------------------

    def masks(self) -> Masks:
        """What would stay if removal, to the final target, came now."""
        alone = not self._layout.sharded  # then a process may ask by itself, say for its display
        try:
            gone = self._bound.select(self._scores(alone), self._final_sparsity)
        except FloatingPointError:
            self._check_finite(alone=alone)
            raise
        return Masks({name: distributed_as(~mine, self.parameters[name]) for name, mine in gone.items()})

    def remove(self) -> Masks:
        """Set the weights beyond the final target to exactly zero, detach, and return the masks.

        Warnings say so where the fade is not complete, that is, where removal changes the network, and
        where it leaves a parameter without any weight.
        """
        self._check_finite("at removal")
        masks = self.masks()
        fade = self._fade_under(masks)
        masks.apply_to(self.parameters)
        self.detach()
        if fade > _COMPLETE:
            early = f", {self.steps - self._step} steps early" if self._step < self.steps else ""
            warnings.warn(
                f"remove() after step {self._step} of {self.steps}{early}: the fade was not complete. The "
                f"norm of the removed weights was {fade:.2g} of that of the others, so the network changes. "
                "Check the accuracy, train on with masks.hold(), or let the fade run its course",
                stacklevel=2,
            )
        empty = [name for name, mask in masks.items() if not int(whole(mask.sum()))]
        if empty:
            warnings.warn(
                f"no weight is left in {', '.join(empty[:5])}: nothing passes there any more. Ask for less, "
                "or protect thin layers with criterion=fadeout.criteria.lamp",
                stacklevel=2,
            )
        return masks

    # Hooks --------------------------------------------------------------------------------------

    def detach(self) -> None:
        """Take the hooks off the optimizer: training goes on without the pruner."""
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None

    def attach(self, optimizer: Optimizer | Sequence[Optimizer]) -> None:
        """Act on this optimizer from now on, say a copy (which has no hooks), or after ``detach()``.

        It must hold the parameters that the pruner was built for.
        """
        optimizers = as_list(optimizer)
        held = held_by(optimizers)
        missing = [name for name, parameter in self.parameters.items() if id(parameter) not in held]
        if missing:
            raise ValueError(f"the optimizer does not hold {', '.join(missing[:5])}: it trains another model")
        before, self._optimizers = self._optimizers, optimizers
        try:
            self._check_groups(self._groups())
        except ValueError:
            self._optimizers = before
            raise
        self.detach()
        self._hooks = StepHooks(optimizers, self, self._looks_ahead)

    # State --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to resume with bit-identical weights, beside model and optimizer."""
        return {
            "version": _VERSION,
            "step": self._step,
            "steps": self.steps,
            "sparsity": self._final_sparsity,
            "shapes": {name: tuple(p.shape) for name, p in self.parameters.items()},
            "scores": self._distributed(self._kept_scores or self._no_scores()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict()`` was taken. A state that does not fit changes nothing."""
        missing = [part for part in self._state_parts if not isinstance(state, dict) or part not in state]
        if missing:
            raise ValueError(
                f"this is no state as {type(self).__name__}.state_dict() gives it: {missing[0]!r} is missing"
            )
        if state["version"] > _VERSION:
            raise ValueError(f"the state is of version {state['version']}, this fadeout reads {_VERSION}")
        shapes = {name: tuple(p.shape) for name, p in self.parameters.items()}
        theirs = {name: tuple(shape) for name, shape in state["shapes"].items()}
        if theirs != shapes:
            odd = [n for n in {**shapes, **theirs} if shapes.get(n) != theirs.get(n)]
            raise ValueError(
                f"the state is from another model: {odd[0]!r} has shape {theirs.get(odd[0])} there and "
                f"{shapes.get(odd[0])} here ({len(odd)} such parameters)"
            )
        for name, mine in (("steps", self.steps), ("sparsity", self._final_sparsity)):
            if state[name] != mine:
                raise ValueError(
                    f"the state was saved with {name}={state[name]}, this pruner has {name}={mine}: "
                    "build it with the same arguments to resume"
                )
        self._step = int(state["step"])
        self._kept_scores = self._blocks(state["scores"]) if self._step else {}

    # Inside -------------------------------------------------------------------------------------

    @property
    def _final_sparsity(self) -> float:
        return in_range(as_schedule(self.sparsity)(1.0), 1.0)

    def _weight(self, name: str) -> Tensor:
        """This process's block of a parameter, outside autograd."""
        return local(self.parameters[name].detach())

    def _distributed(self, blocks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """This process's blocks as copies that are distributed as the parameters are."""
        return {name: distributed_as(block.clone(), self.parameters[name]) for name, block in blocks.items()}

    def _blocks(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of this process's blocks of tensors like the parameters, full or distributed."""
        parameters = self.parameters
        return {
            name: block_of(tensor.detach(), parameters[name]).clone().to(parameters[name].device)
            for name, tensor in tensors.items()
        }

    def _fade_under(self, masks: Masks) -> float:
        squares = torch.zeros(2, dtype=torch.float64)
        for name, mask in masks.items():
            if self._layout.owns(name):
                weight, stays = self._weight(name).double(), local(mask)
                parts = torch.where(stays, 0, weight), torch.where(stays, weight, 0)
                squares += torch.stack([part.square().sum() for part in parts]).cpu()
        gone, stays = self._layout.add(squares).tolist()
        return math.sqrt(gone / stays) if stays else math.inf if gone else 0.0

    @property
    def _needs_gradient(self) -> bool:
        return looks_at_gradients(self.criterion)

    @property
    def _looks_ahead(self) -> bool:
        """Whether something is done before a step."""
        return self._needs_gradient or type(self).join is not Pruner.join

    def _groups(self) -> dict[str, dict[str, Any]]:
        """Each parameter's own group, looked up anew: loading an optimizer's state replaces the groups."""
        owner = {id(p): g for o in self._optimizers for g in o.param_groups for p in g["params"]}
        return {name: owner[id(parameter)] for name, parameter in self.parameters.items()}

    def _targeted(self) -> dict[str, Tensor]:
        """Masks of the weights that are targeted at this step."""
        return self._bound.select(self._scores(), self.sparsity_now)

    def _targets(self) -> Mapping[str, Target]:
        """The weights that are targeted at this step; raises where one is not finite."""
        if self._quick is None:
            self._check_finite()
            return {name: Marked(mask) for name, mask in self._targeted().items()}
        try:
            targets, failed = self._quick.below(self.sparsity_now), False
        except FloatingPointError:
            targets, failed = {}, True
        if failed if self._layout.sharded else self._layout.any([failed])[0]:  # a sharded search has agreed
            self._check_finite()
        return targets

    def _scores(self, alone: bool = False) -> dict[str, Tensor]:
        if not self._needs_gradient:
            return self._scored(alone=alone)
        if not self._kept_scores:
            raise ValueError(
                f"{self.criterion} scores weights by their gradients, and no step has been taken yet"
            )
        return self._kept_scores

    def _scored(self, scales: Mapping[int, float] | None = None, alone: bool = False) -> dict[str, Tensor]:
        """What the criterion says now; raises, on all processes, where it gives no number on one of them."""
        scores = scores_of(self.parameters, self.criterion, scales)
        if self.criterion is criteria.magnitude:  # the weights are checked
            return scores
        odd = [bool(score.isnan().any()) for score in scores.values()]
        odd = odd if alone else self._layout.any(odd)
        for name, is_odd in zip(scores, odd, strict=True):
            if is_odd:
                raise ValueError(f"{self.criterion} gave NaN for {name!r} at step {self._step}")
        return scores

    def _keep_scores(self) -> None:
        scales = {
            id(p): gradient_scale(o) for o in self._optimizers for g in o.param_groups for p in g["params"]
        }
        update = getattr(self.criterion, "update", lambda old, new: new)
        for name, score in self._scored(scales).items():
            old = self._kept_scores.get(name)
            self._kept_scores[name] = score if old is None else update(old, score)

    def _no_scores(self) -> dict[str, Tensor]:
        """What a state has before the first step: as checkpoints want, all states have the same parts."""
        names = self.parameters if self._needs_gradient else ()
        return {name: torch.zeros_like(widened(self._weight(name))) for name in names}

    def _check_finite(self, when: str = "", alone: bool = False) -> None:
        """Raise, naming parameter and step, where a weight is NaN or infinite on any process.

        Args:
            when: for the message; by default at this step.
            alone: only this process asks.
        """
        weights = [self._weight(name) for name in self.parameters]
        largest = [torch.linalg.vector_norm(w, math.inf) if w.numel() else w.new_zeros(()) for w in weights]
        finite = torch.stack([value.isfinite().to(largest[0].device) for value in largest]).tolist()
        odd = [not one for one in finite]
        odd = odd if alone else self._layout.any(odd)
        if not any(odd):
            return
        name = next(name for name, is_odd in zip(self.parameters, odd, strict=True) if is_odd)
        raise ValueError(
            f"{name!r} holds NaN or infinite weights {when or f'at step {self._step}'}: training has "
            f"diverged. The pruner has changed nothing in this step{self._blame()}"
        )

    def _of_all(self, penalty: Tensor | None) -> Tensor | None:
        """What this process's blocks add to the loss, summed over all processes; all of them must ask."""
        if not self._layout.sharded:
            return penalty
        total = self._layout.add(torch.zeros(()) if penalty is None else penalty)
        return total if penalty is None else total.to(penalty.dtype)

    def _blame(self) -> str:
        """What the pruner itself may have to do with a divergence."""
        return ""

    def _count(self) -> None:
        self._step += 1
        if self._step == self.steps + 1:
            warnings.warn(
                f"more steps than the steps={self.steps} that the pruner was built for: its final strength "
                "is held. Pass the number of optimizer steps of the whole training",
                stacklevel=2,
            )


# Below this ratio of norms a removal changes nothing that a test set could show.
_COMPLETE = 1e-2
