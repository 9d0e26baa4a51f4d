"""LeNet-5 on MNIST at extreme sparsity: the default fade, gradual magnitude pruning, the published form.

    FADEOUT_DATA=... python examples/lenet_mnist.py            # all runs, about two core-hours
    FADEOUT_DATA=... python examples/lenet_mnist.py --jobs 2   # two at a time, a thread each

Conditions as in the paper's Section 4.6, a tenth of its length: 20 epochs, batch 128, SGD at 0.1 without
momentum or decay. Each finished run is appended to results/lenet-mnist.jsonl and never repeated, so a run
of this script that was stopped goes on where it was; at the end it writes the table results/lenet-mnist.md.
"""

import argparse
import json
import platform
import statistics
import subprocess
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch

import fadeout
from fadeout.data import mnist
from fadeout.methods import GradualMagnitudePruning
from fadeout.train import accuracy, train

RESULTS = Path(__file__).parent.parent / "results"
EPOCHS, BATCH = 20, 128
PUBLISHED = fadeout.Decay(fadeout.schedules.exponential(0.1, 1e4), weight_decay=5e-4)

METHODS = {
    "fadeout": fadeout.SelectiveWeightDecay,
    "gmp": GradualMagnitudePruning,
    "published": lambda *args, **kwargs: fadeout.SelectiveWeightDecay(*args, fade=PUBLISHED, **kwargs),
    "dense": fadeout.NoPruning,
}
RUNS = [
    {"method": method, "sparsity": sparsity, "seed": seed}
    for seed in range(3)
    for method, targets in {
        "fadeout": (0.99, 0.9, 0.98, 0.995),
        "gmp": (0.99, 0.9, 0.98, 0.995),
        "published": (0.99,),
        "dense": (0.0,),
    }.items()
    for sparsity in targets
]


def run(method: str, sparsity: float, seed: int) -> dict:
    """Train once, from an initialisation that depends on the seed alone."""
    torch.set_num_threads(1)
    data, start = mnist(), time.perf_counter()
    torch.manual_seed(seed)
    model = fadeout.models.lenet5()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = EPOCHS * data.steps(BATCH)
    pruner = METHODS[method](model, optimizer, sparsity=sparsity, steps=steps)
    train(model, optimizer, data, epochs=EPOCHS, batch_size=BATCH, seed=seed, pruner=pruner)
    before = accuracy(model, data.test_x, data.test_y)
    masks = pruner.remove()
    return {
        "before": round(before, 2),
        "after": round(accuracy(model, data.test_x, data.test_y), 2),
        "left": masks.left,
        "seconds": round(time.perf_counter() - start),
    }


def table(records: list[dict]) -> str:
    """Mean and spread (standard deviation) over seeds, as markdown."""
    groups = defaultdict(list)
    for record in records:
        groups[record["sparsity"], record["method"]].append(record)
    lines = ["| target | method | after removal | spread | largest change through removal | seeds |"]
    lines += ["|---|---|---|---|---|---|"]
    for (sparsity, method), group in sorted(groups.items()):
        after = [record["after"] for record in group]
        change = max((record["after"] - record["before"] for record in group), key=abs)
        spread = f"{statistics.stdev(after):.2f}" if len(after) > 1 else ""
        lines.append(
            f"| {sparsity:.1%} | {method} | {statistics.mean(after):.2f} | {spread} | {change:+.2f} | "
            f"{len(after)} |"
        )
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    jobs = parser.parse_args().jobs

    path = RESULTS / "lenet-mnist.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = [{key: record[key] for key in RUNS[0]} for record in records]
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True)
    conditions = {
        "epochs": EPOCHS,
        "commit": commit.stdout.strip(),
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, one thread",
    }
    with ProcessPoolExecutor(jobs) as pool, path.open("a") as file:
        waiting = {pool.submit(run, **config): config for config in RUNS if config not in done}
        for finished in as_completed(waiting):
            records.append({**waiting[finished], **finished.result(), **conditions})
            file.write(json.dumps(records[-1]) + "\n")
            file.flush()
            print(records[-1], flush=True)
    (RESULTS / "lenet-mnist.md").write_text(table(records))
    print(table(records))


if __name__ == "__main__":
    main()
