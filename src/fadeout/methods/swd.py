"""Selective weight decay (Tessier et al., 2022)."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from fadeout._arguments import checked
from fadeout.criteria import Criterion
from fadeout.fades import Decay, Fade, Latent
from fadeout.masks import Masks
from fadeout.methods.method import Method, Phase, train
from fadeout.pruners.bound_fade import BoundFade
from fadeout.pruners.latents import Latents
from fadeout.pruners.penalty import Penalty
from fadeout.pruners.pruner import Pruner
from fadeout.pruners.shrinkage import Shrinkage
from fadeout.schedules import Schedule, Sparsity, Steps, exponential
from fadeout.structures.base import Structure
from fadeout.structures.elements import Elements
from fadeout.torch_bridge.parameters import Prunable, has_two_dimensions


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

    >>> import torch
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
        super().__init__(
            model,
            optimizer,
            sparsity=sparsity,
            steps=steps,
            structure=structure,
            criterion=structure.criterion_for(model, self._fade) if criterion is None else criterion,
            prunable=prunable,
        )
        self._bound_fade = self._bind_fade()

    def _bind_fade(self) -> BoundFade:
        """The fade, with what it does in a step."""
        if isinstance(self._fade, Latent):
            return Latents(self, self._fade)
        return Penalty(self, self._fade) if self._fade.on_gradient else Shrinkage(self, self._fade)

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

    # Around a step, all is the fade's: what each of these does is in its file in ``pruners/``

    def open(self) -> None:
        self._bound_fade.open()

    def evaluation(self) -> AbstractContextManager[object]:
        return self._bound_fade.evaluation()

    def begin(self) -> None:
        super().begin()
        self._bound_fade.begin()

    def join(self, optimizer: Optimizer, wants_loss: bool) -> Tensor | None:
        return self._bound_fade.join(optimizer, wants_loss)

    def between(self) -> None:
        self._bound_fade.between()

    def onward(self) -> None:
        self._bound_fade.onward()

    def end(self) -> None:
        self._bound_fade.end()

    def detach(self) -> None:
        if self._hooks is not None:
            self._bound_fade.recover()
        super().detach()

    def masks(self) -> Masks:
        self._bound_fade.recover()
        self._bound_fade.look_for_settled()
        return super().masks()

    def state_dict(self) -> dict[str, Any]:
        self._bound_fade.recover()
        return {**super().state_dict(), **self._bound_fade.state()}

    def _read(self, state: dict[str, Any]) -> dict[str, Any]:
        return {**self._bound_fade.read(state), **super()._read(state)}

    def _restore(self, parts: dict[str, Any]) -> None:
        super()._restore(parts)
        self._bound_fade.restore(parts)

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

    def _blame(self) -> str:
        return self._bound_fade.blame


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
