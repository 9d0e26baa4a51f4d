"""What one step of the pruner costs, beside the paper's sort and autograd, and beside one multiplication.

    python benchmarks/step_cost.py

25 million weights, as many as ResNet-50 has, drift a little before every step, as in training.
"""

import copy
from functools import partial

import torch
from harness import quartiles, ratios, take_turns
from reference import reference_step
from rows import Part, Row
from weights import POSITIONS, SPARSITY, STEPS, drift, pruner_step, settled

QUICK = {"count": 20_000, "rounds": 2}
KINDS = {"compiled": True, "eager": False}
FASTER = {"compiled": 60, "eager": 30}  # than the reference, at least
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

        def multiply(own=own) -> None:
            with torch.no_grad():
                for weight in own["multiplication"]:
                    weight.mul_(0.999)

        calls = {name: act for name, (_, act) in pruners.items()}
        calls["reference"] = partial(reference_step, own["reference"], sparsity, 1e-4)
        calls["multiplication"] = multiply
        seconds = take_turns(calls, rounds, warm_up=2, before=lambda name, own=own: drift(own[name]))
        facts[place] = {name: quartiles(values) for name, values in seconds.items()}
        for name in kinds:
            faster = ratios(seconds["reference"], seconds[name])
            rows.append(
                Row(
                    f"{name}, {place}: faster than sort and autograd",
                    faster,
                    "x",
                    at_least=FASTER[name],
                )
            )
            limit = MULTIPLICATIONS if name == "compiled" else None
            longer = ratios(seconds[name], seconds["multiplication"])
            rows.append(
                Row(f"{name}, {place}: time of an in-place multiplication", longer, "x", at_most=limit)
            )
    about = (
        f"A pruner's step on {count:,} weights, target {SPARSITY:.0%}, `Elements` with and without compiled "
        "passes, against the paper's method by a sort and autograd, and against one multiplication of all "
        "weights in place."
    )
    return Part("A step", about, rows, {"weights": count, "steps": STEPS, "rounds": rounds, "seconds": facts})


if __name__ == "__main__":
    print(measure().text())
