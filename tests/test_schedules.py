"""Schedules: progress -> value."""

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fadeout import schedules

PROGRESS = st.floats(0, 1)
POSITIVE = st.floats(1e-20, 1e20)


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (schedules.constant(3.0), [3.0, 3.0, 3.0]),
        (schedules.linear(2.0, 10.0), [2.0, 6.0, 10.0]),
        (schedules.linear(1.0, -1.0), [1.0, 0.0, -1.0]),
        (schedules.exponential(0.1, 1e5), [0.1, 100.0, 1e5]),
        (schedules.exponential(100.0, 1.0), [100.0, 10.0, 1.0]),  # the paper's extended grid: decreasing
        (schedules.cosine(0.0, 4.0), [0.0, 2.0, 4.0]),
        (schedules.cosine(4.0, 0.0), [4.0, 2.0, 0.0]),
        (schedules.cubic(0.8), [0.0, 0.7, 0.8]),
        (schedules.cubic(1.0, 0.5), [0.5, 0.9375, 1.0]),
        (schedules.cubic(0.8, window=(0.25, 0.75)), [0.0, 0.7, 0.8]),
        (schedules.smooth(0.8), [0.0, 0.4, 0.8]),
        (schedules.smooth(1.0, 0.5, window=(0.0, 0.75)), [0.5, 0.5 + 0.5 * 20 / 27, 1.0]),
    ],
)
def test_values_at_the_ends_and_the_middle(schedule, values):
    assert [schedule(p) for p in (0.0, 0.5, 1.0)] == pytest.approx(values)


def test_cosine_is_flat_at_its_ends():
    """A quarter of the way, half a cosine wave has gone (1 - cos(pi/4)) / 2 of its height."""
    assert schedules.cosine(0.0, 1.0)(0.25) == pytest.approx((1 - math.sqrt(0.5)) / 2)


@pytest.mark.parametrize(("schedule", "middle"), [(schedules.cubic, 0.9 - 0.8 / 8), (schedules.smooth, 0.5)])
def test_a_target_waits_for_its_window_and_stays_after_it(schedule, middle):
    target = schedule(0.9, 0.1, window=(0.2, 0.6))
    assert [target(p) for p in (0.0, 0.2)] == pytest.approx([0.1, 0.1])
    assert [target(p) for p in (0.6, 0.7, 1.0)] == [0.9, 0.9, 0.9]  # exactly: it is a count in the end
    assert target(0.4) == pytest.approx(middle)


@given(POSITIVE, POSITIVE, PROGRESS, PROGRESS)
def test_every_schedule_goes_steadily_from_start_to_end(start, end, one, other):
    early, late = sorted((one, other))
    for schedule in (
        schedules.linear(start, end),
        schedules.exponential(start, end),
        schedules.cosine(start, end),
        schedules.cubic(end, start),
        schedules.smooth(end, start),
    ):
        slack = 1e-9 * max(start, end)
        assert schedule(0.0) == pytest.approx(start, abs=slack)
        assert schedule(1.0) == pytest.approx(end, abs=slack)
        change = schedule(late) - schedule(early)
        assert change >= -slack if end >= start else change <= slack


@given(POSITIVE, POSITIVE, PROGRESS)
def test_exponential_is_equation_3(start, end, progress):
    expected = math.exp((1 - progress) * math.log(start) + progress * math.log(end))
    assert schedules.exponential(start, end)(progress) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("ends", [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (math.nan, 1.0), (1.0, math.inf)])
def test_exponential_refuses_ends_that_it_cannot_join(ends):
    with pytest.raises(ValueError, match=r"positive.*linear"):
        schedules.exponential(*ends)


@pytest.mark.parametrize("window", [(0.5, 0.5), (0.7, 0.2), (-0.1, 0.5), (0.5, 1.1), (math.nan, 1.0)])
def test_a_window_that_is_none_is_refused(window):
    for schedule in (schedules.cubic, schedules.smooth):
        with pytest.raises(ValueError, match="window"):
            schedule(0.9, window=window)


def test_a_number_becomes_a_schedule_and_a_schedule_stays():
    schedule = schedules.as_schedule(2)
    assert schedule(0.3) == 2.0
    assert schedules.as_schedule(schedule) is schedule
    assert schedules.as_schedule(abs) is abs


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.constant(1.0),
        schedules.linear(0.0, 1.0),
        schedules.exponential(1.0, 2.0),
        schedules.cosine(0.0, 1.0),
        schedules.cubic(0.9, window=(0.1, 0.5)),
        schedules.smooth(0.9, window=(0.1, 0.5)),
    ],
)
def test_schedules_travel_to_other_processes(schedule):
    assert pickle.loads(pickle.dumps(schedule))(0.3) == schedule(0.3)


@pytest.mark.parametrize(
    "text",
    [
        "constant(3.0)",
        "linear(0.0, 0.9)",
        "exponential(0.1, 10000.0)",
        "cosine(1.0, 0.0)",
        "cubic(0.9, 0.0, window=(0.1, 0.5))",
        "smooth(0.9, 0.0, window=(0.1, 0.5))",
    ],
)
def test_a_schedule_is_shown_as_it_was_asked_for(text):
    schedule = eval(text, vars(schedules))
    assert repr(schedule) == repr(pickle.loads(pickle.dumps(schedule))) == text
