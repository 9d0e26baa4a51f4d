"""The counter of steps: progress from 0 to 1, and a warning where there is one too many."""

import contextlib

import pytest

from fadeout._clock import Clock


def test_progress_goes_from_zero_to_one_and_stays_there():
    clock = Clock(steps=2)
    seen = [clock.progress]
    for _ in range(2):
        clock.tick()
        seen.append(clock.progress)
    assert seen == [0.0, 0.5, 1.0]
    with pytest.warns(UserWarning, match="more steps than the steps=2"):
        clock.tick()
    clock.tick()  # and once is enough
    assert clock.progress == 1.0


def test_the_last_step_once_more_ends_even_by_an_error():
    clock = Clock(steps=4)
    clock.tick()
    with contextlib.suppress(ValueError), clock.a_step_ago():
        assert clock.step == 0
        raise ValueError
    assert clock.step == 1
