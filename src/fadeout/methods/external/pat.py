"""PAT: pruning-aware training (torchao's prototype), here with its constraint on single weights."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fadeout._arguments import checked
from fadeout._checks import extra
from fadeout.methods.method import Method, Phase, check_structure, train
from fadeout.pruners.pruner import Pruner
from fadeout.schedules import Sparsity, Steps
from fadeout.structures.base import Structure
from fadeout.structures.elements import Elements
from fadeout.torch_bridge.parameters import Prunable, has_two_dimensions
from fadeout.torch_bridge.sharding import is_split

_WARM, _HEALS = 0.1, 0.75  # of the training; torchao leaves both to the user, and these are as in GMP


class PAT(Pruner):
    """Step dense weights, run the network on their projection onto sparse ones, and heal it at last.

    The optimizer steps latent weights ``u``. From step ``s`` of the warm-up's end to step ``h``, at which
    healing begins, the network runs on

        ``w = argmin |w - u|  subject to  n(w = 0) >= T (1 - (1 - (n - s) / (h - s)) ** 3) n(w)``

    at step ``n``, that is, on ``u`` without its smallest magnitudes. Then the zeros are fixed, and what is
    left trains on. All of this is done by torchao's own ``PruneOptimizer``, with ``ElemGrouper``,
    ``GlobalMinSparsityConstraint`` and ``min_sparsity_schedule``; it meets the target itself, exactly, and
    removal at the end takes nothing. (Its lasso, ``w = sign(u) max(|u| - lambda gamma, 0)`` with ``gamma``
    the sum of the learning rates, knows no target: how sparse a network becomes follows from ``lambda``.)
    torchao names no lengths: warm-up is a tenth of the training, and healing its last quarter.

    It works on copies: a projection of its own has no effect on weights in another memory format
    (``channels_last``). So it needs no wrapper around the optimizer, and any optimizer will do.

    Args:
        model, optimizer, steps, prunable: as in :class:`fadeout.SelectiveWeightDecay`.
        sparsity: the fraction to remove; of a schedule, its last value.
        structure: :class:`fadeout.Elements`, single weights.

    Reference: ``torchao.prototype.pat`` of torchao 0.18, https://github.com/pytorch/ao/pull/3429. It is
    installed by ``pip install "fadeout[bench]"``.
    """

    _state_parts = (*Pruner._state_parts, "latents")
    _default_structure = Elements
    structure: Elements
    _wrapped: Any = None  # torchao's optimizer, around one that copies what the user's has done
    _latents: dict[str, Tensor]

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
    ):
        if structure is not None and not isinstance(structure, Elements):
            raise ValueError(f"PAT prunes single weights: structure is fadeout.Elements(), got {structure!r}")
        _import_optimizer()
        self._latents = {}
        super().__init__(
            model, optimizer, sparsity=sparsity, steps=steps, structure=structure, prunable=prunable
        )
        split = [name for name, parameter in self.parameters.items() if is_split(parameter)]
        if split:
            raise ValueError(f"PAT projects whole networks, and {split[0]!r} lies on several processes")

    @property
    def sparsity_now(self) -> float:
        """The fraction that is zero after this step."""
        target = {"min_sparsity": self.final_sparsity, "min_sparsity_schedule": True}
        return self._wrap()._effective_min_sparsity(target)

    @property
    def factor_now(self) -> float:
        """What a targeted weight is multiplied by: zero."""
        return 0.0

    @property
    def acts_early(self) -> bool:
        return True

    def begin(self) -> None:
        wrapped = self._wrap()
        self._copy()
        if wrapped.warmup_steps < self.steps_taken < wrapped.healing_start_step:
            for name, latent in self._latents.items():
                self.weight(name).copy_(latent)

    def end(self) -> None:
        self.check_finite()
        wrapped = self._wrap()
        wrapped.step()
        for name, own in self._copies.items():
            self.weight(name).copy_(own)
            self._latents[name] = wrapped.state[own]["latent"]

    def _wrap(self) -> Any:
        """torchao's optimizer, as it is at this step."""
        if self._wrapped is None:
            warm = int(_WARM * self.steps)
            heals = max(int(_HEALS * self.steps), warm + 1)
            self._copies = {
                name: nn.Parameter(self.weight(name).clone(memory_format=torch.contiguous_format))
                for name in self.parameters
            }
            for own in self._copies.values():
                own.grad = torch.zeros_like(own)  # zeros are held only where there is a gradient
            together = self.structure.ranked_together(self.parameters)
            base = _Copied([self._group(names) for names in together], self._copy)
            self._wrapped = _import_optimizer()(base, warmup_steps=warm, healing_start_step=heals)
            self._wrapped.num_steps = self.steps_taken
            for name, latent in self._latents.items():
                base.state[self._copies[name]]["latent"] = latent
        return self._wrapped

    def _copy(self) -> None:
        for name, own in self._copies.items():
            own.copy_(self.weight(name))

    def _group(self, names: list[str]) -> dict[str, Any]:
        own = [self._copies[name] for name in names]
        total = sum(each.numel() for each in own)
        goes = round(self.final_sparsity * total)
        return {
            "params": own,
            "group_type": "ElemGrouper",
            "prox_type": "GlobalMinSparsityConstraint",
            "min_sparsity": max(goes - 1e-3, 0) / total,  # of which it rounds the number up
            "min_sparsity_schedule": True,
        }

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_wrapped": None, "_copies": {}}  # it cannot be copied

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "latents": self._distributed(self._latents)}

    def _read(self, state: dict[str, Any]) -> dict[str, Any]:
        return {**super()._read(state), "latents": self._blocks(state["latents"])}

    def _restore(self, parts: dict[str, Any]) -> None:
        super()._restore(parts)
        self._latents, self._wrapped = parts["latents"], None


class _Copied(Optimizer):
    """What torchao wraps: its step is a copy of the one that the user's optimizers have just taken."""

    def __init__(self, groups: list[dict[str, Any]], copy: Callable[[], None]):
        super().__init__(groups, {"lr": 0.0})  # which the constraint does not ask for
        self._copy = copy

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._copy()


def _import_optimizer() -> Any:
    """torchao's optimizer, without what it logs of GPU kernels that it cannot load."""
    logging.disable(logging.WARNING)
    try:
        with extra("bench"):
            from torchao.prototype.pat import PruneOptimizer  # pyright: ignore[reportMissingImports]
    finally:
        logging.disable(logging.NOTSET)
    return PruneOptimizer


def pat(epochs: int, sparsity: float, structure: str) -> list[Phase]:
    """torchao's pruning-aware training (PAT): latent weights, a constraint that grows, then fixed zeros."""
    check_structure("pat", structure, "elements")
    return train(PAT, epochs, sparsity=sparsity)


METHOD = Method("pat", pat, label="PAT", colour="#3b5bdb", dark_colour="#9db2ff", marker="$☁$", order=22)
