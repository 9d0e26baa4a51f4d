"""What all that acts while a network trains shares: the optimizer's step hooks, a clock, a state."""

import gc
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fadeout._checks import warn
from fadeout._clock import Clock
from fadeout._tables import html_table, percent
from fadeout.pruners.built_together import built_together
from fadeout.structures.base import Structure
from fadeout.structures.scores import not_finite
from fadeout.torch_bridge.optimizers import as_list, bases, set_to_zero
from fadeout.torch_bridge.parameters import (
    Prunable,
    check_held,
    check_unchanged,
    chosen_by,
    frozen,
    has_two_dimensions,
    held_by,
    named,
)
from fadeout.torch_bridge.sharding import block_of, distributed_as, gradient_of, local
from fadeout.torch_bridge.step_hooks import Rounds, StepHooks

_VERSION = 1
_ATTACHED: "weakref.WeakValueDictionary[int, StepPruner]" = weakref.WeakValueDictionary()  # by id
_LOOK_EVERY = 1000  # steps; to look takes as long as a small network's step


class StepPruner(Rounds, ABC):
    """The base of all that acts on a network while it trains: hooks, steps, state.

    A subclass says what is done after a step (:meth:`end`), and perhaps before it (:meth:`acts_early`; see
    :class:`Rounds` for what is called when). State of its own joins ``state_dict()`` and
    ``load_state_dict()``.

    Attributes:
        structure: the unit that is pruned as a whole.
        parameters: those that take part, by name.
        optimizers: those that train them.
    """

    _state_parts: tuple[str, ...] = ("version", "step", "steps", "shapes")
    _hooks: StepHooks | None = None
    _is_begun = False  # to be built

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__init__" in vars(cls):
            cls.__init__ = built_together(cls.__init__)

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        steps: int,
        structure: Structure,
        prunable: Prunable = has_two_dimensions,
    ):
        self._clock = Clock(steps)
        self.structure = structure
        self.optimizers = as_list(optimizer)
        self._model = model
        self._frozen = frozen(model, prunable)
        self._bound = structure.bind(model, self.optimizers, prunable, self.steps)
        self.parameters = self._bound.parameters
        self._shapes = {name: parameter.shape for name, parameter in self.parameters.items()}
        self._layout = self._bound.layout
        self._warn_of_what_stays_out(prunable)

    # What a subclass fills in -------------------------------------------------------------------

    @property
    def acts_early(self) -> bool:
        """Whether something is done before a step, that is, by more than :meth:`end`."""
        return False

    @abstractmethod
    def end(self) -> None:
        """All optimizers have stepped."""

    def _check_groups(self, groups: dict[str, dict[str, Any]]) -> None:
        """Raise where a parameter's group lacks what the pruner needs."""
        return

    def _settings(self) -> dict[str, Any]:
        """What must be the same on all processes, and when a state is loaded."""
        return {"steps": self.steps}

    def _blame(self) -> str:
        """What the pruner itself may have to do with a divergence."""
        return ""

    # For people ---------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return "\n".join([type(self).__name__, *(f"  {name:<10} {text}" for name, text in self._lines())])

    def _repr_html_(self) -> str:
        return html_table([["", type(self).__name__], *self._lines()])

    def _lines(self) -> list[tuple[str, str]]:
        detached = "" if self._hooks is not None else ", detached from the optimizer"
        return [*self._figures().items(), ("progress", f"step {self._clock.step} of {self.steps}{detached}")]

    def _figures(self) -> dict[str, str]:
        """What the pruner is, in words."""
        share = f", {percent(self._share_of_all(self.parameters))} of the model's"
        return {
            "prunes": self._bound.in_words() + (share if self.structure.counts_weights else ""),
            "structure": str(self.structure),
        }

    def _share_of_all(self, names: Iterable[str]) -> float:
        """The share of the model's weights that these parameters have."""
        sizes = {name: parameter.numel() for name, parameter in named(self._model).items()}
        return sum(sizes.get(name, 0) for name in names) / max(sum(sizes.values()), 1)

    def _warn_of_what_stays_out(self, prunable: Prunable) -> None:
        """Say so where parameters are frozen, or where less than a half of what is prunable takes part."""
        wanted = [*self.parameters, *self._frozen]
        if callable(prunable):
            everything = named(self._model)
            wanted += [n for n in chosen_by(prunable, everything) if everything[n].is_floating_point()]
        share, counts = self._share_of_all(self.parameters), self.structure.counts_weights
        self._idle = set(wanted if counts else self._frozen) - self._training()
        few = counts and share < self._share_of_all(set(wanted)) / 2
        only = f"only {percent(share)} of the model's weights take part"
        if self._frozen:
            said = (
                f"{len(self._frozen)} prunable parameters are frozen (requires_grad=False), such as "
                f"{self._frozen[0]!r}, with {percent(self._share_of_all(self._frozen))} of the model's "
                "weights: they are left as they are, and the target counts without them"
            )
            warn(f"{said}, so that {only}" if few else said)
        elif few:
            warn(f"{only}: the optimizer does not hold the others, so that they stay as they are")

    # Steps --------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """The optimizer steps over which the fade completes."""
        return self._clock.steps

    @property
    def progress(self) -> float:
        """How far the fade is: 0 before the first step, ``s / steps`` after ``s`` steps, 1 at most."""
        return self._clock.progress

    @property
    def steps_taken(self) -> int:
        """The optimizer steps that are over; they may go beyond :attr:`steps`."""
        return self._clock.step

    def close(self) -> None:
        """Count the step. Now and then, look whether the model is still the one that is pruned."""
        if self._clock.step % _LOOK_EVERY == 0:
            self._check_model()
        self._clock.tick()

    # What a method works with -------------------------------------------------------------------

    def weight(self, name: str) -> Tensor:
        """This process's block of a parameter, outside autograd."""
        self._check_shape(name)
        return local(self.parameters[name].detach())

    def groups(self) -> dict[str, dict[str, Any]]:
        """Each parameter's own group, looked up anew: loading an optimizer's state replaces the groups."""
        owner = {id(p): g for o in self.optimizers for g in o.param_groups for p in g["params"]}
        missing = [name for name, parameter in self.parameters.items() if id(parameter) not in owner]
        if missing:
            raise ValueError(
                f"the optimizer no longer holds {', '.join(missing[:5])}, which it held when the pruner was "
                "built: put it back, or call detach() and build the pruner anew"
            )
        return {name: owner[id(parameter)] for name, parameter in self.parameters.items()}

    def check_finite(self, when: str = "", alone: bool = False) -> None:
        """Raise, naming parameter and step, where a weight is NaN or infinite on any process.

        Args:
            when: for the message; by default at this step.
            alone: only this process asks.
        """
        name = not_finite(self.parameters, self._layout, alone)
        if name is not None:
            raise ValueError(
                f"{name!r} holds NaN or infinite weights {when or f'at step {self._clock.step}'}: training "
                f"has diverged. The pruner has changed nothing in this step{self._blame()}"
            )

    # Hooks --------------------------------------------------------------------------------------

    def detach(self) -> None:
        """Take the hooks off the optimizer: training goes on without the pruner."""
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None
        _ATTACHED.pop(id(self), None)

    def attach(self, optimizer: Optimizer | Sequence[Optimizer]) -> None:
        """Act on this optimizer from now on, say a copy (which has no hooks), or after ``detach()``.

        It must hold the parameters that the pruner was built for.
        """
        optimizers = as_list(optimizer)
        check_held(self.parameters, optimizers)
        self._check_alone()
        before, self.optimizers = self.optimizers, optimizers
        try:
            self._check_groups(self.groups())
        except ValueError:
            self.optimizers = before
            raise
        self.detach()
        self._hooks = StepHooks(optimizers, self, self.acts_early)
        _ATTACHED[id(self)] = self

    def _check_alone(self) -> None:
        """Raise where another pruner acts on the same parameters: both would fade what they choose."""
        if self._others():
            gc.collect()  # a pruner and its optimizer hold each other, when nobody else does any more
        for name, kind in self._others():
            raise ValueError(
                f"{name!r} is already pruned by a {kind} that is attached to its optimizer (perhaps this "
                "line was run before): call detach() on that one first, or build model and optimizer anew"
            )

    def _others(self) -> list[tuple[str, str]]:
        """Parameters that another pruner acts on as well, by name, and what that one is."""
        own = set(map(id, self.parameters.values()))
        alive = [reference() for reference in _ATTACHED.valuerefs()]  # a list, while threads attach others
        return [
            (name, type(other).__name__)
            for other in alive
            if other is not None and other is not self
            for name, parameter in other.parameters.items()
            if id(parameter) in own
        ]

    def __getstate__(self) -> dict[str, Any]:
        """All but the hooks, for a copy or a file; :meth:`attach` puts them on the copy's optimizer."""
        return {**vars(self), "_hooks": None}

    # State --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to resume with bit-identical weights, beside model and optimizer."""
        shapes = {name: tuple(p.shape) for name, p in self.parameters.items()}
        return {"version": _VERSION, "step": self._clock.step, **self._settings(), "shapes": shapes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict()`` was taken. A state that does not fit changes nothing.

        After ``remove()`` the pruner is attached again; after ``detach()`` it stays detached.
        """
        damaged = f"this is no state as {type(self).__name__}.state_dict() gives it"
        missing = [part for part in self._state_parts if not isinstance(state, dict) or part not in state]
        if missing:
            raise ValueError(f"{damaged}: {missing[0]!r} is missing")
        try:
            self._check_fits(state)
            parts = self._read(state)
        except (AttributeError, KeyError, TypeError) as error:  # a part of it is something else
            raise ValueError(f"{damaged}: {type(error).__name__}: {error}") from error
        self._restore(parts)

    def _check_fits(self, state: dict[str, Any]) -> None:
        """Raise where a state is of another version, model, target or length."""
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
        for name, mine in self._settings().items():
            if state[name] != mine:
                raise ValueError(
                    f"the state was saved with {name}={state[name]}, this pruner has {name}={mine}: "
                    "build it with the same arguments to resume"
                )
        if state["step"] < 0:
            raise ValueError(f"the state is of step {state['step']}, and steps count from 0")

    def _read(self, state: dict[str, Any]) -> dict[str, Any]:
        """What of a state that fits is to be restored; raises where a part of it is bad."""
        return {"step": int(state["step"])}

    def _restore(self, parts: dict[str, Any]) -> None:
        """Take over what :meth:`_read` gave; nothing can go wrong any more."""
        self._clock.step = parts["step"]

    # Inside -------------------------------------------------------------------------------------

    def _check_shape(self, name: str) -> None:
        now, before = self.parameters[name].shape, self._shapes[name]
        if now != before:
            raise ValueError(
                f"{name!r} has shape {tuple(now)}, and had {tuple(before)} when the pruner was built: change "
                "the model first, then build the optimizer, then the pruner"
            )

    def _gradients(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """This process's blocks of the gradients that an optimizer is about to use, by parameter."""
        own = held_by([optimizer])
        found = {name: gradient_of(p) for name, p in self.parameters.items() if id(p) in own}
        return {name: gradient for name, gradient in found.items() if gradient is not None}

    def _base(self, name: str) -> list[Tensor]:
        """What a schedule-free optimizer steps beside a parameter: it fades as the weights do."""
        return bases(self.optimizers, self.parameters[name])

    def _set_to_zero(self, gone: Mapping[str, Tensor]) -> None:
        """Set weights to exactly zero, for good: no optimizer brings them back from its state."""
        for name, mask in gone.items():
            set_to_zero(self.parameters[name], mask, self.optimizers)

    def _distributed(self, blocks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """This process's blocks as copies that are distributed as the parameters are."""
        return {name: distributed_as(block.clone(), self.parameters[name]) for name, block in blocks.items()}

    def _blocks(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies of this process's blocks of tensors like the parameters, full or distributed."""
        blocks = {}
        for name, tensor in tensors.items():
            parameter = self.parameters.get(name)
            if parameter is None or not isinstance(tensor, Tensor) or tensor.shape != parameter.shape:
                raise ValueError(
                    f"the state has no tensor for {name!r} of the shape that it has in this model"
                )
            blocks[name] = block_of(tensor.detach(), parameter).clone().to(parameter.device)
        return blocks

    def _training(self) -> set[str]:
        """The parameters that train, and that an optimizer holds, by name."""
        held = held_by(self.optimizers)
        return {name for name, p in named(self._model).items() if p.requires_grad and id(p) in held}

    def _check_model(self) -> None:
        check_unchanged(self._model, self.parameters)
        late = sorted(self._idle & self._training())
        if late:
            self._idle -= set(late)
            warnings.warn(
                f"{', '.join(late[:5])} began to train after the pruner was built, which leaves alone what "
                "was frozen then, or held by no optimizer: the network will keep more weights than asked "
                "for. Unfreeze first, give all to the optimizer, then build the pruner",
                stacklevel=2,
            )

    def _sum_over_processes(self, penalty: Tensor | None) -> Tensor | None:
        """What this process's blocks add to the loss, summed over all processes; all of them must ask."""
        if not self._layout.sharded:
            return penalty
        total = self._layout.add(torch.zeros((), device="cpu") if penalty is None else penalty)
        return total if penalty is None else total.to(penalty.dtype)
