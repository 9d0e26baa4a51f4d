"""Checks of what users pass, each of which raises a ``ValueError`` that helps; and of optional packages."""

import difflib
import inspect
import math
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from fadeout._arguments import fitted, shown


def known(kind: str, given: str, accepted: Iterable[str]) -> None:
    """Raise, naming the nearest and all accepted names, where one is unknown."""
    accepted = list(accepted)
    if given not in accepted:
        near = difflib.get_close_matches(str(given), accepted, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? There" if near else "there"
        raise ValueError(f"no {kind} {given!r}; {hint} are {', '.join(accepted)}")


def checked_sparsity(sparsity: Any) -> Any:
    """The sparsity, if it is a fraction or a schedule of fractions.

    >>> checked_sparsity(90)
    Traceback (most recent call last):
    ValueError: sparsity is a fraction between 0 and 1, or a schedule; got 90. Did you mean 0.9?
    """
    if callable(sparsity):
        schedule: Any = sparsity
        for progress in (0.0, 0.25, 0.5, 0.75, 1.0):
            try:
                in_range(schedule(progress), progress)
            except Exception as error:
                raise ValueError(
                    f"sparsity is a fraction or a schedule of fractions, got {shown(sparsity)}: {error}"
                ) from error
        return sparsity
    try:
        value = fitted("sparsity", sparsity, float)
    except ValueError:
        value = math.nan
    if 0 < value < 1:
        return value
    hint = "Use fadeout.NoPruning for a dense run" if value == 0 else "It is the fraction to remove"
    if 1 < value < 100:
        hint = f"Did you mean {value / 100:g}?"
    raise ValueError(f"sparsity is a fraction between 0 and 1, or a schedule; got {sparsity!r}. {hint}")


def in_range(given: Any, progress: float) -> float:
    """What a sparsity schedule gives as a plain number, if that is a sparsity."""
    value: float = fitted("what the sparsity schedule gives", given, float)
    if not 0 <= value < 1 or (progress == 1.0 and value == 0):
        raise ValueError(
            f"the sparsity schedule gives {value!r} at progress {progress:g}; it must stay in [0, 1), and "
            "end above 0"
        )
    return value


def warn(message: str) -> None:
    """Warn of the line of the user's own program that called into this package, however deep that was."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


_PACKAGE = os.path.dirname(__file__) + os.sep


class MissingExtraError(ImportError):
    """A package of an extra is not installed."""


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import the packages of an extra inside, and a missing one raises a :class:`MissingExtraError`.

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
