"""Races: in turns, again where the machine is busy, and the calmest attempt counts."""

import platform
import subprocess
import sys

import pytest

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


FETCHES = """
import resource, sys, torch
from fadeout._timing import race

def allocate():
    parts = [torch.ones(2 << 20) for _ in range(4)]  # 8 MB each, freed together

if sys.argv[1] == "race":
    race({"": lambda: None}, rounds=2, attempts=1)
allocate()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    allocate()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other habits")
def test_freed_memory_is_kept():
    """Ten times 32 MB, in new processes: after a race, pages come from the system once at most."""
    pages = {
        way: int(subprocess.check_output([sys.executable, "-c", FETCHES, way], text=True))
        for way in ("race", "none")
    }
    assert pages["race"] <= (32 << 20) // 4096
    assert pages["race"] < pages["none"]
