"""Which of several ways is the fastest, on this machine and now: they take turns."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

BUSY = 0.15  # a spread above it says more about the machine than about what was measured


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median of several rounds, and the quartiles around it."""

    lower: float
    median: float
    upper: float

    @property
    def spread(self) -> float:
        """The distance of the quartiles, over the median."""
        return (self.upper - self.lower) / self.median


def race(
    contestants: Mapping[str, Callable[[], object]],
    wait: Callable[[], object] = lambda: None,
    *,
    rounds: int = 9,
    attempts: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time some functions in turns; where the spread of one is above 15 %, all of them again.

    Args:
        contestants: what to call, by name.
        wait: waits until a device has done its work.
        rounds: in each, every contestant is timed once, over as many calls as take half a millisecond.
        attempts: the one with the least spread counts.
        clock: gives seconds; that of the process alone, ``time.process_time``, does not see what others do,
            but adds up what several threads do.

    >>> sorted(race({"sum": lambda: sum(range(9)), "nothing": lambda: None}, attempts=1))
    ['nothing', 'sum']
    """
    _keep_memory()
    calls = {name: _calls(act, wait, clock) for name, act in contestants.items()}
    best: dict[str, Timing] = {}
    for _ in range(attempts):
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(rounds):
            for name, act in contestants.items():
                seconds[name].append(_time(act, wait, clock, calls[name]))
        found = {n: Timing(*statistics.quantiles(own, method="inclusive")) for n, own in seconds.items()}
        if not best or worst_spread(found) < worst_spread(best):
            best = found
        if worst_spread(best) <= BUSY:
            break
    return best


def worst_spread(timings: Mapping[str, Timing]) -> float:
    """The largest spread: above :data:`BUSY` the machine is too busy to measure."""
    return max(timing.spread for timing in timings.values())


def _keep_memory() -> None:
    """Let the C library keep the memory of freed tensors, as in a process that has run for a while.

    Before a large tensor was freed, glibc may return the memory of each activation to the system and fetch it
    again page by page: the same network then takes up to 40 % longer in one process than in another.
    """
    torch.empty(31 << 20, dtype=torch.uint8, device="cpu")  # of 32 MB and more it learns nothing


def _time(
    act: Callable[[], object], wait: Callable[[], object], clock: Callable[[], float], calls: int
) -> float:
    start = clock()
    for _ in range(calls):
        act()
    wait()
    return max((clock() - start) / calls, 1e-9)


def _calls(act: Callable[[], object], wait: Callable[[], object], clock: Callable[[], float]) -> int:
    """How many calls take half a millisecond, after two to warm up."""
    act()
    act()
    wait()
    return max(int(5e-4 / _time(act, wait, clock, 1)), 1)
