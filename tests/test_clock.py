"""The counter of steps: progress from 0 to 1, and a warning where there is one too many."""

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
