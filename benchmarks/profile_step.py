"""Where the time of one warm step goes, operator by operator.

    python benchmarks/profile_step.py [--compile] [--late] [--weights N]

The table is that of ``torch.profiler``, longest first; what Python itself takes is the rest of the time.
"""

import argparse
import time

from torch.profiler import ProfilerActivity, profile
from weights import POSITIONS, drift, pruner_step, settled


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--weights", type=int, default=25_000_000, help="how many (default: %(default)s)")
    parser.add_argument("--compile", action="store_true", help="with compiled passes")
    parser.add_argument("--late", action="store_true", help="in the last tenth of the training")
    arguments = parser.parse_args()
    weights, step = settled(
        arguments.weights, POSITIONS["the last tenth" if arguments.late else "mid training"]
    )
    _, act = pruner_step(weights, step, arguments.compile)
    for _ in range(12):  # until the search has learned how the threshold moves
        drift(weights)
        act()
    drift(weights)
    start = time.perf_counter()
    act()
    seconds = time.perf_counter() - start
    drift(weights)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        act()
    print(
        recorded.key_averages().table(sort_by="self_cpu_time_total", row_limit=12, max_name_column_width=40)
    )
    print(f"the step before, without the profiler: {1e3 * seconds:.1f} ms")


if __name__ == "__main__":
    main()
