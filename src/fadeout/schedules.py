"""Schedules: callables from progress in [0, 1] to a number.

Wherever Fadeout takes a number that may change during training, it also takes a schedule, and any
callable will do: ``lambda progress: ...``.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

Schedule = Callable[[float], float]


def constant(value: float) -> Schedule:
    """The same value throughout.

    >>> constant(3.0)(0.5)
    3.0
    """
    return partial(_constant, value)


def linear(start: float, end: float) -> Schedule:
    """A straight line: ``start + (end - start) * p``.

    >>> linear(0.0, 8.0)(0.25)
    2.0
    """
    return partial(_linear, start, end)


def exponential(start: float, end: float) -> Schedule:
    """Equation 3 of the paper: ``a(p) = start * (end / start) ** p``.

    Decreases when ``end < start``, as in the paper's extended grid. Both ends must be positive.

    >>> round(exponential(0.1, 1e5)(0.5), 6)
    100.0
    """
    if not (0 < start < math.inf and 0 < end < math.inf):
        raise ValueError(
            f"an exponential schedule needs two positive finite ends, got {start!r} and {end!r}; "
            "use linear() to start or end at zero"
        )
    return partial(_exponential, start, end)


def cosine(start: float, end: float) -> Schedule:
    """Half a cosine wave: ``end + (start - end) * (1 + cos(pi p)) / 2``.

    >>> round(cosine(0.0, 1.0)(0.5), 6)
    0.5
    """
    return partial(_cosine, start, end)


def cubic(end: float, start: float = 0.0, *, window: tuple[float, float] = (0.0, 1.0)) -> Schedule:
    """The growing target of Zhu and Gupta (2017): fast at first, then slower and slower.

    ``end + (start - end) * (1 - t) ** 3``, with ``t`` the position of the progress inside ``window``.

    >>> target = cubic(0.9, window=(0.1, 0.75))
    >>> target(0.0), round(target(0.425), 4), target(0.75)
    (0.0, 0.7875, 0.9)
    """
    begin, finish = window
    if not 0 <= begin < finish <= 1:
        raise ValueError(f"a window is two growing numbers in [0, 1], got {window!r}")
    return partial(_cubic, start, end, begin, finish)


def as_schedule(value: float | Schedule) -> Schedule:
    """A number as a constant schedule; a callable as it is.

    >>> as_schedule(2)(0.3)
    2.0
    """
    return value if callable(value) else constant(float(value))


def checked_sparsity(sparsity: Any) -> Any:
    """The sparsity, if it is a fraction or a schedule of fractions; otherwise a ``ValueError`` that helps.

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
    """A schedule's sparsity, if it is one."""
    if not 0 <= value < 1 or (progress == 1.0 and value == 0):
        raise ValueError(
            f"the sparsity schedule gives {value!r} at progress {progress:g}; it must stay in [0, 1), and "
            "end above 0"
        )
    return value


# Module-level functions, so that a schedule can be pickled and sent to another process.


def _constant(value: float, progress: float) -> float:
    return value


def _linear(start: float, end: float, progress: float) -> float:
    return start + (end - start) * progress


def _exponential(start: float, end: float, progress: float) -> float:
    return start * (end / start) ** progress


def _cosine(start: float, end: float, progress: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2


def _cubic(start: float, end: float, begin: float, finish: float, progress: float) -> float:
    position = min(max((progress - begin) / (finish - begin), 0.0), 1.0)
    return end + (start - end) * (1 - position) ** 3
