"""Means, spreads and intervals of a few numbers, by hand."""

import math

import pytest

from fadeout.experiments.report.statistics import Estimate, estimate, paired_margin


def test_mean_and_standard_deviation_of_a_sample():
    assert estimate([1.0, 2.0, 3.0]) == Estimate(2.0, 1.0)
    assert estimate([5.0]) == Estimate(5.0, None)


def test_what_is_not_finite_has_no_mean():
    assert math.isnan(estimate([80.0, math.inf]).mean)


def test_the_interval_is_that_of_student():
    margin = paired_margin([-1.0, -2.0, -3.0])
    assert margin.mean == -2.0
    assert margin.half == pytest.approx(4.30265 / math.sqrt(3), abs=1e-4)  # t of two degrees of freedom
    assert margin.verdict == "level"
    assert paired_margin([-2.0, -2.1, -1.9]).verdict == "behind"
    assert paired_margin([0.5]) == (0.5, None)
    assert paired_margin([0.5]).verdict == "one seed"
