"""How much memory one step of the pruner needs beside the weights.

python benchmarks/memory.py
"""

import copy
from functools import partial

from harness import peak_bytes
from reference import reference_step
from rows import Part, Row
from weights import KINDS, POSITIONS, drift, pruner_step, settled

QUICK = {"count": 20_000}
MOST, ANYWAY = 0.05, 8e6  # of the weights' bytes; so many bytes in any case


def measure(count: int = 25_000_000, kinds: dict[str, bool] = KINDS) -> Part:
    """Count the bytes of a step, after a few that warm up.

    Args:
        count: of weights.
        kinds: of passes, by name: whether to compile.
    """
    rows, facts = [], {}
    size = 4 * count
    limit = max(MOST, ANYWAY / size)
    for place, progress in POSITIONS.items():
        settled_weights, step = settled(count, progress)
        sparsity = 0.0
        for name, compile in kinds.items():
            weights = copy.deepcopy(settled_weights)
            pruner, act = pruner_step(weights, step, compile)
            for _ in range(3):
                drift(weights)
                act()
            drift(weights)
            peak = peak_bytes(act)
            sparsity = pruner.sparsity_now
            facts[f"{name}, {place}"] = peak
            rows.append(Row(f"{name}, {place}", [peak / size] * 3, "%", at_most=limit))
        for weight in settled_weights:  # the gradients of the loss are there before the penalty's come
            weight.grad = weight.detach().clone()
        peak = peak_bytes(partial(reference_step, settled_weights, sparsity, 1e-4))
        facts[f"sort and autograd, {place}"] = peak
        rows.append(Row(f"sort and autograd, {place}", [peak / size] * 3, "%"))
    about = (
        f"The peak of what a warm step on {count:,} weights allocates, over the {size / 1e6:,.3g} MB of the "
        "weights. Exact counts, so there is no spread."
    )
    return Part("Memory of a step", about, rows, {"weights": count, "bytes": facts})


if __name__ == "__main__":
    print(measure().text())
