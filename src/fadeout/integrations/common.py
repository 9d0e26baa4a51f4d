"""What all integrations share: the versions they need, how many steps there are, how a training ends."""

import warnings
from importlib.metadata import PackageNotFoundError, version

from torch import nn

from fadeout._checks import MissingExtraError
from fadeout.masks import Masks
from fadeout.pruners.pruner import Pruner
from fadeout.torch_bridge.parameters import unwrap


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


def check_resumed(saved: int, now: int, trainer: str) -> None:
    """Raise where a checkpoint was made by a training of another length."""
    if saved != now:
        raise ValueError(
            f"the checkpoint's fade runs over {saved} optimizer steps, and this trainer will take {now} "
            f"({trainer} differ): resume with the same ones. To train a network that is pruned already, load "
            "its weights alone, and keep the zeros with masks.hold(model, optimizer)"
        )


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
