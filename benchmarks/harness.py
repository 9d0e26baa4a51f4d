"""How all benchmarks measure: calls that take turns, quartiles, allocations, and under which conditions."""

import os

# The profiler's messages about itself do not belong between the tables; read when torch loads.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import gc
import json
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from fadeout.experiments.disk.run_folder import conditions
from fadeout.pruners.pruner import Pruner

RESULTS = Path(__file__).parent.parent / "results"


def take_turns(
    calls: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warm_up: int = 1,
    before: Callable[[str], object] = lambda name: None,
) -> dict[str, list[float]]:
    """The seconds of each call in each round: all calls in every round, so that a busy machine slows all.

    Args:
        calls: what to time, by name.
        rounds: that count.
        warm_up: rounds before these, which do not.
        before: called with the name before each call, outside the clock.

    >>> sorted(take_turns({"a": int, "b": str}, rounds=3))
    ['a', 'b']
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(warm_up + rounds):
        for name, call in calls.items():
            before(name)
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: values[warm_up:] for name, values in seconds.items()}


def quartiles(values: Sequence[float]) -> list[float]:
    """Lower quartile, median, upper quartile.

    >>> quartiles([1.0, 2.0, 3.0, 4.0, 5.0])
    [2.0, 3.0, 4.0]
    """
    if len(values) == 1:
        return [values[0]] * 3
    return statistics.quantiles(values, n=4, method="inclusive")


def means(values: Sequence[float], size: int = 4) -> list[float]:
    """The means of so many values at a time, in their order; of all of them where there are fewer.

    Where the threshold has jumped, a pruner looks for it in several passes. A median over steps leaves such
    steps out, but a training pays for them: so several steps make one figure.

    >>> means([1.0, 3.0, 5.0, 5.0, 9.0], size=2)
    [2.0, 5.0]
    """
    count = max(len(values) // size, 1)
    return [statistics.fmean(values[i * size : (i + 1) * size]) for i in range(count)]


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """The quartiles of the ratio, round by round: what slows a whole round falls out.

    >>> ratios([2.0, 4.0, 6.0], [1.0, 2.0, 2.0])
    [2.0, 2.0, 2.5]
    """
    return quartiles([a / b for a, b in zip(above, below, strict=True)])


def peak_bytes(call: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> int:
    """The peak of what is allocated during a call, to the byte, with what a preparation left behind.

    The profiler sees every allocation of PyTorch's CPU allocator, also the scratch space inside an operator
    (a sort has some) and the buffers of compiled code; a ``TorchDispatchMode`` sees only the results of
    operators, and the size of the process only what the system has not lent already. What NumPy allocates is
    counted in a second call, and its peak added, as if both came at the same time. The profiler does not know
    the size of what is older than itself: what the call frees must come from the call, or from the
    preparation.

    Args:
        call: what to look at.
        prepare: called before; its own peak does not count.

    >>> import torch
    >>> peak_bytes(lambda: torch.ones(1000).add(torch.ones(1000)))
    12000
    """
    gc.collect()  # what an earlier call left behind is not to be freed inside this one
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        prepare()
        with record_function(_MARK):
            call()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        trace = json.loads(path.read_text())["traceEvents"]
    begun = next(event["ts"] for event in trace if event.get("name") == _MARK)
    events = sorted((e for e in trace if e.get("name") == "[memory]"), key=lambda event: event["ts"])
    now = peak = 0
    for event in events:
        now += event["args"]["Bytes"]
        peak = now if event["ts"] < begun else max(peak, now)
    return peak + _peak_of_numpy(call)


def _peak_of_numpy(call: Callable[[], object]) -> int:
    """Of a call; Python's own objects, which are counted with it, are no more than a few kilobytes."""
    tracemalloc.start()
    try:
        call()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return peak if peak > 100_000 else 0


_MARK = "the call begins"


def at_step(pruner: Pruner, step: int) -> None:
    """Let a pruner go on from another step of its training."""
    pruner.load_state_dict({**pruner.state_dict(), "step": step})


def surroundings() -> dict[str, Any]:
    """Where, with what and how undisturbed a benchmark runs."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    processor = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None
    )
    return {**conditions(), "processor": processor, "load": round(os.getloadavg()[0], 2)}
