"""Races: in turns, again where the machine is busy, and the calmest attempt counts."""

from fadeout import _timing
from fadeout._timing import Timing, race, worst_spread


def test_the_calmest_attempt_counts(monkeypatch):
    """Each call of the clock is an answer worked out by hand."""
    noisy, calm = [1.0, 2.0, 4.0], [2.0, 2.0, 2.1]
    seconds = iter([*noisy, *calm])
    monkeypatch.setattr(_timing, "_calls", lambda act, wait, clock: 1)
    monkeypatch.setattr(_timing, "_time", lambda act, wait, clock, calls: next(seconds))
    found = race({"a": lambda: None}, rounds=3, attempts=3)
    assert found == {"a": Timing(2.0, 2.0, 2.05)}
    assert next(seconds, None) is None  # the third attempt was not needed
    assert round(worst_spread(found), 3) == 0.025


def test_contestants_take_turns(monkeypatch):
    order = []
    monkeypatch.setattr(_timing, "_calls", lambda act, wait, clock: 3)
    race({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2, attempts=1)
    assert "".join(order) == "aaabbb" * 2
