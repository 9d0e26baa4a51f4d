"""What several seeds say: mean and std of one method, and the paired difference of two, with its interval."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

from fadeout.experiments.report.formatting import joined, number


class Estimate(NamedTuple):
    """A mean over seeds, and the standard deviation of a sample, which a single seed has not.

    >>> str(Estimate(98.5, 0.25)), str(Estimate(98.5, None))
    ('98.50 ± 0.25', '98.50')
    """

    mean: float
    std: float | None

    def __str__(self) -> str:
        return joined(number(self.mean), number(self.std), by=" ± ")


class Margin(NamedTuple):
    """A method's accuracy less fadeout's, seed by seed: the mean, and half the width of its 95 % interval.

    >>> str(Margin(-0.8, 0.5)), Margin(-0.8, 0.5).verdict, Margin(-0.4, 0.5).verdict
    ('-0.80 ± 0.50', 'behind', 'level')
    """

    mean: float
    half: float | None

    def __str__(self) -> str:
        return joined(number(self.mean, signed=True), number(self.half), by=" ± ")

    @property
    def verdict(self) -> str:
        """Whether the method is ahead of fadeout, behind it, or neither for certain."""
        if self.half is None:
            return "one seed"
        return "ahead" if self.mean > self.half else "behind" if self.mean < -self.half else "level"


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of values, one for each seed, and their standard deviation; NaN where one is not finite.

    >>> estimate([98.0, 99.0]).mean
    98.5
    """
    if not np.isfinite(values).all():
        values = [math.nan] * len(values)
    return Estimate(fmean(values), float(np.std(values, ddof=1)) if values[1:] else None)


def paired_margin(differences: Sequence[float]) -> Margin:
    """The mean of differences, one for each seed, and half of the 95 % interval of Student's t.

    ``t sd / sqrt(n)``, with ``t`` the 0.975 quantile for ``n - 1`` degrees of freedom.

    >>> str(paired_margin([-0.5, -0.7, -0.6]))
    '-0.60 ± 0.25'
    """
    if len(differences) == 1:
        return Margin(differences[0], None)
    from scipy.special import stdtrit  # here: half a second that a report without rivals need not wait

    width = float(stdtrit(len(differences) - 1, 0.975)) / math.sqrt(len(differences))
    return Margin(fmean(differences), width * stdev(differences))
