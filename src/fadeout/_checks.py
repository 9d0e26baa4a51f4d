"""Checks of what users pass, each of which raises a ``ValueError`` that helps; and of optional packages."""

import difflib
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.optim import Optimizer


def one_of(name: str, given: object, accepted: Sequence[str]) -> None:
    """Raise where an argument is none of a few words.

    >>> one_of("mode", "grad", ("gradient", "implicit"))
    Traceback (most recent call last):
    ValueError: mode is one of 'gradient', 'implicit'; got 'grad'
    """
    if given not in accepted:
        raise ValueError(f"{name} is one of {', '.join(map(repr, accepted))}; got {given!r}")


def known(kind: str, given: str, accepted: Iterable[str]) -> None:
    """Raise, naming the nearest and all accepted names, where one is unknown."""
    accepted = list(accepted)
    if given not in accepted:
        near = difflib.get_close_matches(str(given), accepted, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(f"no {kind} {given!r}; {hint}There is {', '.join(accepted)}")


def checked_sparsity(sparsity: Any) -> Any:
    """The sparsity, if it is a fraction or a schedule of fractions.

    >>> checked_sparsity(90)
    Traceback (most recent call last):
    ValueError: sparsity is a fraction between 0 and 1, or a schedule; got 90. Did you mean 0.9?
    """
    if callable(sparsity):
        schedule: Any = sparsity
        for progress in (0.0, 0.25, 0.5, 0.75, 1.0):
            in_range(schedule(progress), progress)
        return sparsity
    try:
        value = float(sparsity)
    except (TypeError, ValueError):
        value = math.nan
    if 0 < value < 1 and not isinstance(sparsity, bool):
        return value
    hint = "Use fadeout.NoPruning for a dense run" if value == 0 else "It is the fraction to remove"
    if 1 < value < 100:
        hint = f"Did you mean {value / 100:g}?"
    raise ValueError(f"sparsity is a fraction between 0 and 1, or a schedule; got {sparsity!r}. {hint}")


def in_range(value: float, progress: float) -> float:
    """What a sparsity schedule gives, if that is a sparsity."""
    if not 0 <= value < 1 or (progress == 1.0 and value == 0):
        raise ValueError(
            f"the sparsity schedule gives {value!r} at progress {progress:g}; it must stay in [0, 1), and "
            "end above 0"
        )
    return value


def checked_steps(steps: int) -> int:
    """A number of steps, if it is whole and positive."""
    whole = isinstance(steps, int) or (isinstance(steps, float) and steps.is_integer())
    if isinstance(steps, bool) or not whole or steps < 1:
        raise ValueError(f"steps is the whole number of optimizer steps of the training, got {steps!r}")
    return int(steps)


def whole_number(name: str, given: Any) -> None:
    """Raise where an argument is no whole number from 1 on.

    >>> whole_number("rows", 0)
    Traceback (most recent call last):
    ValueError: rows is a whole number from 1 on, got 0
    """
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ValueError(f"{name} is a whole number from 1 on, got {given!r}")


def as_list(optimizer: Optimizer | Sequence[Optimizer]) -> list[Optimizer]:
    """One optimizer or several as a list, each once."""
    several: Any = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
    optimizers: list[Optimizer] = list({id(one): one for one in several}.values())
    if not optimizers or not all(isinstance(o, Optimizer) for o in optimizers):
        raise ValueError(f"optimizer is a torch.optim.Optimizer, or a list of them; got {optimizer!r}")
    return optimizers


class MissingExtraError(ImportError):
    """A package of an extra is not installed."""


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import optional packages inside, and a missing one raises a :class:`MissingExtraError`.

    Args:
        name: the extra that brings them.

    >>> with extra("experiments"):
    ...     import no_such_package
    Traceback (most recent call last):
    fadeout._checks.MissingExtraError: no_such_package is not installed: pip install "fadeout[experiments]"
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "a package").partition(".")[0]
        if package == "fadeout":  # a broken installation, which no extra would mend
            raise
        raise MissingExtraError(
            f'{package} is not installed: pip install "fadeout[{name}]"', name=package
        ) from error
