"""How the time of a step grows with the number of weights: at most in proportion.

python benchmarks/growth.py
"""

import copy
import statistics
from collections.abc import Sequence
from functools import partial
from math import log

from harness import means, quartiles, take_turns
from rows import Part, Row
from weights import STEPS, drift, multiply, pruner_step, settled

SIZES = (10**4, 3 * 10**4, 10**5, 3 * 10**5, 10**6, 3 * 10**6, 10**7, 3 * 10**7, 10**8, 2 * 10**8)
QUICK = {"sizes": (1000, 3000, 10_000), "rounds": 2}
PROGRESS = 0.5
LARGE = 10**7  # from here on no cache holds the weights
LINEAR = 1.05  # an exponent of 1, and a little for noise


def measure(sizes: Sequence[int] = SIZES, rounds: int = 12) -> Part:
    """Time a step at each size, with the passes that the pruner chooses there itself.

    Args:
        sizes: numbers of weights, growing.
        rounds: at each of them.
    """
    points = []
    for count in sizes:
        weights, step = settled(count, PROGRESS, steps=5)
        own = {"step": weights, "multiplication": copy.deepcopy(weights)}
        _, act = pruner_step(weights, step, compile=None)
        calls = {"step": act, "multiplication": partial(multiply, own["multiplication"])}
        turns = rounds if count >= LARGE else 3 * rounds
        seconds = take_turns(calls, turns, warm_up=3, before=lambda name, own=own: drift(own[name]))
        points.append(
            {"weights": count, **{name: quartiles(means(values)) for name, values in seconds.items()}}
        )
    rows = [_exponent(f"all sizes, from {sizes[0]:,} weights", points)]
    large = [point for point in points if point["weights"] >= LARGE]
    if len(large) > 1:
        rows.append(_exponent(f"large sizes, from {LARGE:,} weights", large))
    about = (
        f"The exponent with which the time of a warm step grows, from {sizes[0]:,} to {sizes[-1]:,} weights. "
        "1 is proportional. Fitted through the medians of the sizes, and through their quartiles."
    )
    return Part("Growth", about, rows, {"steps": STEPS, "points": points})


def _exponent(what: str, points: Sequence[dict]) -> Row:
    sizes = [log(point["weights"]) for point in points]
    slopes = [
        statistics.linear_regression(sizes, [log(point["step"][i]) for point in points]).slope
        for i in range(3)
    ]
    low, high = sorted((slopes[0], slopes[2]))
    return Row(what, [min(low, slopes[1]), slopes[1], max(high, slopes[1])], at_most=LINEAR)


if __name__ == "__main__":
    print(measure().text())
