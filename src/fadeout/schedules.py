"""Schedules: callables from progress in [0, 1] to a number.

Wherever Fadeout takes a number that may change during training, it also takes a schedule, and any
callable will do: ``lambda progress: ...``.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated

from fadeout._arguments import Number, Only, checked

Schedule = Callable[[float], float]


class _Formula(partial):
    """A formula with its numbers, shown as it was asked for."""

    def __repr__(self) -> str:
        numbers = ", ".join(map(repr, self.args))
        if self.func in (_cubic, _smooth):
            start, end, *window = self.args
            numbers = f"{end!r}, {start!r}, window={tuple(window)}"
        return f"{self.func.__name__[1:]}({numbers})"


Fraction = Annotated[float, Only(lambda x: True, "a fraction between 0 and 1")]
Sparsity = Annotated[float | Schedule, Only(lambda x: True, "a fraction between 0 and 1, or a schedule")]
Steps = Annotated[int, Only(lambda n: 1 <= n < 2**53, "the whole number of optimizer steps of the training")]
Positive = Annotated[
    float, Only(lambda x: 0 < x < math.inf, "a positive finite number (linear() starts or ends at zero)")
]
Window = Annotated[
    tuple[float, float], Only(lambda w: 0 <= w[0] < w[1] <= 1, "two growing numbers in [0, 1]")
]


@checked
def constant(value: Number) -> Schedule:
    """The same value throughout.

    >>> constant(3.0)(0.5)
    3.0
    """
    return _Formula(_constant, value)


@checked
def linear(start: Number, end: Number) -> Schedule:
    """A straight line: ``start + (end - start) * p``.

    >>> linear(0.0, 8.0)(0.25)
    2.0
    """
    return _Formula(_linear, start, end)


@checked
def exponential(start: Positive, end: Positive) -> Schedule:
    """Equation 3 of the paper: ``a(p) = start * (end / start) ** p``.

    Decreases when ``end < start``, as in the paper's extended grid. Both ends must be positive.

    >>> round(exponential(0.1, 1e5)(0.5), 6)
    100.0
    """
    return _Formula(_exponential, start, end)


@checked
def cosine(start: Number, end: Number) -> Schedule:
    """Half a cosine wave: ``end + (start - end) * (1 + cos(pi p)) / 2``.

    >>> round(cosine(0.0, 1.0)(0.5), 6)
    0.5
    """
    return _Formula(_cosine, start, end)


@checked
def cubic(end: Number, start: Number = 0.0, *, window: Window = (0.0, 1.0)) -> Schedule:
    """The growing target of Zhu and Gupta (2017): fast at first, then slower and slower.

    ``end + (start - end) * (1 - t) ** 3``, with ``t`` the position of the progress inside ``window``.

    >>> target = cubic(0.9, window=(0.1, 0.75))
    >>> target(0.0), round(target(0.425), 4), target(0.75)
    (0.0, 0.7875, 0.9)
    """
    begin, finish = window
    return _Formula(_cubic, start, end, begin, finish)


@checked
def smooth(end: Number, start: Number = 0.0, *, window: Window = (0.0, 1.0)) -> Schedule:
    """From one number to another, beginning and ending gently.

    ``start + (end - start) t ** 2 (3 - 2 t)``, with ``t`` the position of the progress inside ``window``.

    >>> share = smooth(1.0, window=(0.1, 0.5))
    >>> share(0.0), round(share(0.2), 4), round(share(0.3), 4), share(0.5)
    (0.0, 0.1562, 0.5, 1.0)
    """
    begin, finish = window
    return _Formula(_smooth, start, end, begin, finish)


def as_schedule(value: float | Schedule) -> Schedule:
    """A number as a constant schedule; a callable as it is.

    >>> as_schedule(2)(0.3)
    2.0
    """
    return value if callable(value) else constant(float(value))


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
    return end + (start - end) * (1 - _position(progress, begin, finish)) ** 3


def _smooth(start: float, end: float, begin: float, finish: float, progress: float) -> float:
    t = _position(progress, begin, finish)
    share = t * t * (3 - 2 * t)
    return (1 - share) * start + share * end


def _position(progress: float, begin: float, finish: float) -> float:
    return min(max((progress - begin) / (finish - begin), 0.0), 1.0)
