"""What all integrations share: the versions they need, and a pruner from beginning to end of a training."""

import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from torch import nn

from fadeout._checks import MissingExtraError
from fadeout.masks import Masks
from fadeout.methods.swd import SelectiveWeightDecay
from fadeout.pruners.pruner import Pruner, asked_sparsity
from fadeout.schedules import Schedule
from fadeout.torch_bridge.parameters import unwrap
from fadeout.torch_bridge.step_hooks import StepHooks


def needs(extra: str, package: str, oldest: str) -> None:
    """Raise where a package is missing, naming the extra that brings it, or is too old.

    Args:
        package: as pip calls it.

    >>> needs("lightning", "no-such-package", "2.0")
    Traceback (most recent call last):
    fadeout._checks.MissingExtraError: no-such-package is not installed: pip install "fadeout[lightning]"
    >>> needs("lightning", "torch", "999.0")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ImportError: torch 999.0 or newer is needed, and this is ...: pip install --upgrade "fadeout[lightning]"
    """
    try:
        found = version(package)
    except PackageNotFoundError as error:
        raise MissingExtraError(f'{package} is not installed: pip install "fadeout[{extra}]"') from error
    if _numbers(found) < _numbers(oldest):
        raise ImportError(
            f"{package} {oldest} or newer is needed, and this is {found}: "
            f'pip install --upgrade "fadeout[{extra}]"'
        )


def _numbers(text: str) -> list[int]:
    """``2.13.0+cpu`` as numbers that can be compared."""
    return [int(part) for part in text.partition("+")[0].split(".") if part.isdigit()]


def agreed_steps(given: int | None, planned: float, trainer: str) -> int:
    """The optimizer steps over which the fade completes: those that the trainer will take.

    Args:
        given: by the user, if at all.
        planned: by the trainer; infinite, or below 1, where it does not know.
        trainer: what decides it, for messages.

    >>> agreed_steps(None, 300, "max_epochs")
    300
    >>> agreed_steps(200, 300, "max_epochs")
    Traceback (most recent call last):
    ValueError: steps=200, but the trainer will take 300 optimizer steps (max_epochs): leave steps out
    """
    known = 1 <= planned < float("inf")
    if given is None and not known:
        raise ValueError(
            f"the trainer does not know how many optimizer steps it will take ({trainer}): say it, or pass "
            "steps="
        )
    if known and given is not None and given != planned:
        raise ValueError(
            f"steps={given}, but the trainer will take {planned:g} optimizer steps ({trainer}): leave steps "
            "out"
        )
    return int(planned if given is None else given)


def is_of(pruner: Pruner | None, model: nn.Module) -> bool:
    """Whether a pruner is that of a network, and not of another that was trained before, as in a search."""
    return pruner is not None and unwrap(pruner._model) is unwrap(model)


def finish(pruner: Pruner) -> Masks | None:
    """Remove what has faded at the end of a training; where that would change the network, warn instead."""
    masks = None
    if pruner.complete:
        masks = pruner.remove()
    else:
        warnings.warn(
            f"nothing was removed: training ended after {pruner.progress:.0%} of the pruner's {pruner.steps} "
            f"steps, and the fade was not complete (what would go has {pruner.fade:.2g} of the norm of the "
            "rest). Resume the training, or let pruner.remove() remove it all the same",
            stacklevel=2,
        )
    pruner.detach()
    return masks


class Adapter:
    """The part of a trainer's callback that is the same in every trainer.

    Args:
        sparsity, steps, method, arguments: as the callbacks say.
    """

    pruner: Pruner | None = None
    """Of the last training."""
    masks: Masks | None = None
    """What stayed, once removed."""

    _decided_by: str
    """What decides how many steps the trainer takes, for messages."""
    _why_stateless = "it was trained without it"
    """How a checkpoint came to have no state of ours, for messages."""
    _held: StepHooks | None = None

    def __init__(
        self,
        sparsity: float | Schedule | None = None,
        *,
        steps: int | None = None,
        method: Callable[..., Pruner] = SelectiveWeightDecay,
        **arguments: Any,
    ):
        super().__init__()
        self.sparsity = asked_sparsity(sparsity, arguments.get("structure"))
        self.steps, self.method, self.arguments = steps, method, arguments

    def _hold(self, model: nn.Module, optimizers: Any) -> bool:
        """Keep the zeros of a network that is pruned already; returns whether this is such a fine-tuning."""
        if self.masks is None or not is_of(self.pruner, model):
            return False
        self._held = self.masks.hold(model, optimizers)
        return True

    def _begin(
        self,
        model: nn.Module,
        optimizers: Any,
        planned: float,
        saved: dict[str, Any] | None,
        step: int = 0,
        **defaults: Any,
    ) -> None:
        """Make the pruner of a training.

        Args:
            planned: the optimizer steps that the trainer will take.
            saved: the state of the pruner, where a checkpoint is gone on from.
            step: at which that is.
            defaults: arguments of the pruner that the user's own come before.
        """
        steps = agreed_steps(self.steps, planned, self._decided_by)
        if saved is None and step:
            raise ValueError(
                f"training goes on at step {step}, from a checkpoint that has no state of "
                f"{type(self).__name__}: {self._why_stateless}. Load its weights alone, and begin anew"
            )
        if saved is not None and saved["steps"] != steps:
            raise ValueError(
                f"the checkpoint's fade runs over {saved['steps']} optimizer steps, and this trainer will "
                f"take {steps} ({self._decided_by} differ): resume with the same ones. To train a network "
                "that is pruned already, load its weights alone, and keep the zeros with masks.hold(model, "
                "optimizer)"
            )
        if self.pruner is not None:  # of a training that was stopped
            self.pruner.detach()
        self.masks = None
        self.pruner = self.method(
            model, optimizers, sparsity=self.sparsity, steps=steps, **defaults | self.arguments
        )
        if saved is not None:
            self.pruner.load_state_dict(saved)

    def _end(self) -> None:
        """Remove what has faded, or let go of what a fine-tuning held."""
        if self._held is not None:
            self._held.remove()
            self._held = None
        elif self.pruner is not None:
            self.masks = finish(self.pruner)


class CompactingAdapter(Adapter):
    """An adapter that can also leave the smaller network."""

    compacted: nn.Module | None = None
    """The smaller network, with ``compact=True``."""

    def __init__(
        self,
        sparsity: float | Schedule | None = None,
        *,
        steps: int | None = None,
        compact: bool = False,
        method: Callable[..., Pruner] = SelectiveWeightDecay,
        **arguments: Any,
    ):
        super().__init__(sparsity, steps=steps, method=method, **arguments)
        self.compact = compact

    def _example(self, default: Any) -> Any:
        """An input to compact with: the structure's, or else what the trainer knows."""
        example = getattr(self.arguments.get("structure"), "example_input", None)
        return default if example is None else example
