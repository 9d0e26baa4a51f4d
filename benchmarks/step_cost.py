"""What one step of the pruner costs, beside the paper's sort and autograd, and beside one multiplication.

    python benchmarks/step_cost.py

25 million weights, as many as ResNet-50 has, drift a little before every step, as in training.
"""

import copy
import statistics
from functools import partial

from harness import quartiles, ratios, take_turns
from reference import reference_step
from rows import Part, Row
from weights import KINDS, POSITIONS, SPARSITY, STEPS, drift, multiply, pruner_step, settled

QUICK = {"count": 20_000, "rounds": 2}
FASTER = {"compiled": 60, "eager": 30}  # than the reference, at least
PER_ROUND = 4  # steps of the pruner
MULTIPLICATIONS = 8  # that a compiled step takes, at most


def measure(count: int = 25_000_000, rounds: int = 7, kinds: dict[str, bool] = KINDS) -> Part:
    """Time the step in the middle and at the end of a training.

    Args:
        count: of weights.
        rounds: of each contestant.
        kinds: of passes, by name: whether to compile.
    """
    rows, facts = [], {}
    for place, progress in POSITIONS.items():
        weights, step = settled(count, progress)
        own = {name: copy.deepcopy(weights) for name in (*kinds, "reference", "multiplication")}
        pruners = {name: pruner_step(own[name], step, kinds[name]) for name in kinds}
        sparsity = pruners[next(iter(kinds))][0].sparsity_now
        # several steps in a round, for the long ones among them; one sort is like another
        calls = {f"{name} {i}": act for i in range(PER_ROUND) for name, (_, act) in pruners.items()}
        calls["reference 0"] = partial(reference_step, own["reference"], sparsity, 1e-4)
        product = partial(multiply, own["multiplication"])
        calls.update({f"multiplication {i}": product for i in range(PER_ROUND)})
        timed = take_turns(calls, rounds, before=lambda name, own=own: drift(own[name.partition(" ")[0]]))
        seconds = {name: _round_by_round(timed, name) for name in own}
        facts[place] = {name: quartiles(values) for name, values in seconds.items()}
        for name in kinds:
            faster = ratios(seconds["reference"], seconds[name])
            what = f"{name}, {place}: faster than sort and autograd"
            rows.append(Row(what, faster, "x", at_least=FASTER[name]))
            limit = MULTIPLICATIONS if name == "compiled" else None
            longer = ratios(seconds[name], seconds["multiplication"])
            what = f"{name}, {place}: time of an in-place multiplication"
            rows.append(Row(what, longer, "x", at_most=limit))
    about = (
        f"A pruner's step on {count:,} weights, target {SPARSITY:.0%}, `Elements` with and without compiled "
        "passes, against the paper's method by a sort and autograd, and against one multiplication of all "
        f"weights in place. A figure is the mean of {PER_ROUND} steps."
    )
    return Part("A step", about, rows, {"weights": count, "steps": STEPS, "rounds": rounds, "seconds": facts})


def _round_by_round(timed: dict[str, list[float]], name: str) -> list[float]:
    """The mean of a contestant's calls in each round."""
    own = [seconds for call, seconds in timed.items() if call.startswith(f"{name} ")]
    return [statistics.fmean(each) for each in zip(*own, strict=True)]


if __name__ == "__main__":
    print(measure().text())
