"""What all pruners with a target share: how much is targeted now, masks, and removal."""

import math
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fadeout import criteria
from fadeout._arguments import checked, shown
from fadeout._checks import checked_sparsity, in_range
from fadeout._tables import percent
from fadeout.criteria import Criterion
from fadeout.masks import Masks
from fadeout.pruners.step_pruner import StepPruner
from fadeout.pruners.summary import Row, Summary
from fadeout.schedules import Schedule, Sparsity, Steps
from fadeout.selection.floats import double
from fadeout.structures.base import Structure, Target
from fadeout.structures.scores import Scores
from fadeout.torch_bridge.parameters import Prunable, has_two_dimensions
from fadeout.torch_bridge.sharding import distributed_as, local, whole


def asked_sparsity(sparsity: float | Schedule | None, structure: Structure | None) -> float | Schedule:
    """The target that the user names, or else the structure itself."""
    if sparsity is None and structure is not None:
        sparsity = structure.sparsity
    if sparsity is None:
        raise ValueError(
            "sparsity is a fraction between 0 and 1, or a schedule; got None. Only NM(n, m) and "
            "Channels(example_input, faster=4) say it themselves"
        )
    return checked_sparsity(sparsity)


class Pruner(StepPruner):
    """The base of pruners with a target: masks, removal, figures for a display.

    Args:
        model, optimizer, sparsity, steps, structure, criterion, prunable: as in
            :class:`fadeout.SelectiveWeightDecay`.
    """

    _state_parts = (*StepPruner._state_parts, "sparsity", "scores")
    _default_structure: type[Structure]
    _is_done = False  # removal has taken the hooks off

    @checked
    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        sparsity: Sparsity | None = None,
        steps: Steps,
        structure: Structure | None = None,
        criterion: Criterion = criteria.magnitude,
        prunable: Prunable = has_two_dimensions,
    ):
        structure = self._default_structure() if structure is None else structure
        self.sparsity = asked_sparsity(sparsity, structure)
        self._outcome = ""  # of a removal, where the structure measures it
        super().__init__(model, optimizer, steps=steps, structure=structure, prunable=prunable)
        self._bound.check(self.final_sparsity)
        self.criterion = criterion
        self._scores = Scores(self.parameters, self._bound.rank_by(criterion), self._layout, self._clock)
        self.attach(self.optimizers)

    @property
    def acts_early(self) -> bool:
        return self._scores.need_gradients

    def begin(self) -> None:
        if self._scores.need_gradients:
            self._scores.keep(self.optimizers)

    # What a method works with -------------------------------------------------------------------

    @property
    def final_sparsity(self) -> float:
        """The target: ``sparsity``, or what it is at the end where it is a schedule."""
        return in_range(self.sparsity(1.0), 1.0) if callable(self.sparsity) else self.sparsity

    def share(self) -> float:
        """How far the target has grown at this step, from 0 to 1; by default all the way."""
        return 1.0

    def select(self, sparsity: float, alone: bool = False) -> dict[str, Tensor]:
        """Masks of the weights of lowest score, True where one goes: exactly as many as the sparsity says.

        Args:
            sparsity: the fraction to choose.
            alone: only this process asks.
        """
        for name in self.parameters:
            self._check_shape(name)
        try:
            return self._bound.select(self._scores.now(alone), sparsity)
        except FloatingPointError:
            self.check_finite(alone=alone)
            raise

    # Figures for a progress display -------------------------------------------------------------

    @property
    def sparsity_now(self) -> float:
        """The fraction that is targeted at this step: it grows, unless ``sparsity`` is a schedule."""
        return self._sparsity_at(self.share())

    @property
    @abstractmethod
    def factor_now(self) -> float:
        """What a targeted weight is multiplied by at this step."""

    @property
    def fade(self) -> float:
        """The norm of what removal would take now, over the norm of what would stay."""
        return self._fade_under(self.masks())

    def _figures(self) -> dict[str, str]:
        now = self.sparsity_now
        grows = f", {percent(now)} now" if now != self.final_sparsity else ""
        target = f"{percent(self.final_sparsity)} to go{grows}"
        target += f"; {self._outcome}" if self._outcome else ""
        return {"target": target, **super()._figures(), "criterion": shown(self.criterion)}

    def summary(self) -> Summary:
        """What removal, to the final target, would leave of each parameter now, and how far it has faded.

        >>> import fadeout
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(10, 20), nn.Linear(20, 5))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> print(fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.9, steps=100).summary())
        parameter  weights  left  share  fade
        -------------------------------------
        0.weight       200    30   15 %   1.3
        1.weight       100     0    0 %   inf
        -------------------------------------
        total          300    30   10 %   1.5
        """
        masks = self.masks()
        squares = self._squares(masks)
        counts = [(mask.numel(), int(whole(mask.sum()))) for mask in masks.values()]
        rows = [
            Row(name, *count, _ratio(pair)) for name, count, pair in zip(masks, counts, squares, strict=True)
        ]
        weights, left = map(sum, zip(*counts, strict=True))
        total = Row("total", weights, left, _ratio(squares.sum(0)))
        return Summary(tuple(rows), total)

    @property
    def complete(self) -> bool:
        """Whether the fade is complete: removal now would change nothing that a test set could show."""
        return self.fade <= _COMPLETE

    # Removal ------------------------------------------------------------------------------------

    def masks(self) -> Masks:
        """What would stay if removal, to the final target, came now."""
        alone = not self._layout.sharded  # then a process may ask by itself, say for its display
        gone = self.select(self.final_sparsity, alone)
        return Masks({name: distributed_as(~mine, self.parameters[name]) for name, mine in gone.items()})

    def remove(self) -> Masks:
        """Set the weights beyond the final target to exactly zero, detach, and return the masks.

        Warnings say so where the fade is not complete, that is, where removal changes the network, and
        where it leaves a parameter without any weight.
        """
        self._check_model()
        self.check_finite("at removal")
        masks = self.masks()
        fade = self._fade_under(masks)
        self._set_to_zero({name: ~local(mask) for name, mask in masks.items()})
        self._outcome = self._bound.outcome(self.final_sparsity)
        self.detach()
        self._is_done = True
        if fade > _COMPLETE:
            step, steps = self._clock.step, self.steps
            early = f", {steps - step} steps early" if step < steps else ""
            advice = "let the fade run its course" if early else "fade earlier or more strongly"
            warnings.warn(
                f"remove() after step {step} of {steps}{early}: the fade was not complete. The norm of the "
                f"removed weights was {fade:.2g} times that of the others, so the network changes. "
                f"Check the accuracy, train on with masks.hold(), or {advice}",
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

    # State --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        state = {**super().state_dict(), "scores": self._distributed(self._scores.state())}
        state["made_of"] = self._made_of()
        structure = self._bound.state()
        return {**state, "structure": structure} if structure else state

    def _read(self, state: dict[str, Any]) -> dict[str, Any]:
        parts = super()._read(state)
        saved = state.get("made_of", {})  # states of version 0.1 do not say
        for name, mine in self._made_of().items():
            if (theirs := saved.get(name, mine)) != mine:
                raise ValueError(
                    f"the state was saved with {name}={theirs}, this pruner has {name}={mine}, which chooses "
                    "other weights: build it with the same arguments to resume"
                )
        scores = self._blocks(state["scores"]) if parts["step"] else {}
        return {**parts, "scores": scores, "structure": dict(state.get("structure", {}))}

    def _restore(self, parts: dict[str, Any]) -> None:
        if self._is_done and self._hooks is None:  # the state is of a time at which it was attached
            self.attach(self.optimizers)
            self._is_done, self._outcome = False, ""
        super()._restore(parts)
        self._scores.kept = parts["scores"]
        self._bound.restore(parts["structure"])

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "sparsity": self.final_sparsity}

    def _made_of(self) -> dict[str, str]:
        """What chooses the weights, in words that are the same in another process."""
        return {"structure": _named(self.structure), "criterion": _named(self.criterion)}

    # Inside -------------------------------------------------------------------------------------

    def _sparsity_at(self, share: float) -> float:
        """What is targeted when the target has grown so far; a schedule is what it is."""
        if callable(self.sparsity):
            progress = self._clock.progress
            return in_range(self.sparsity(progress), progress)
        return self.sparsity * share

    def _choose(self, sparsity: float) -> Mapping[str, Target]:
        """The targeted weights at a sparsity; raises, on all processes, where one is not finite."""
        try:
            targets, failed = self._bound.choose(self._scores, sparsity), False
        except FloatingPointError:
            targets, failed = {}, True
        if self._layout.size > 1 and not self._layout.sharded:  # a sharded search has agreed already
            (failed,) = self._layout.any([failed])
        if failed:
            self.check_finite()
        return targets

    def _fade_under(self, masks: Masks) -> float:
        return _ratio(self._squares(masks).sum(0))

    def _squares(self, masks: Masks) -> Tensor:
        """For each parameter the sums of squares of what goes and of what stays."""
        squares = torch.zeros(len(masks), 2, dtype=torch.float64, device="cpu")
        for number, (name, mask) in enumerate(masks.items()):
            if self._layout.owns(name):
                weight = double(self.weight(name))
                stays = local(mask).to(weight.device)
                parts = torch.where(stays, 0, weight), torch.where(stays, weight, 0)
                squares[number] = torch.stack([part.square().sum() for part in parts]).cpu()
        return self._layout.add(squares)


def _named(value: object) -> str:
    """What a value is, without the address that it has in this process."""
    text = repr(value)
    return getattr(value, "__qualname__", type(value).__qualname__) if " at 0x" in text else text


def _ratio(squares: Tensor) -> float:
    """The norm of what goes over that of what stays."""
    gone, stays = squares.tolist()
    return math.sqrt(gone / stays) if stays else math.inf if gone else 0.0


# Below this ratio of norms a removal changes nothing that a test set could show.
_COMPLETE = 1e-2
