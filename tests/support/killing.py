"""A program for test_kills.py: runs that are killed (SIGKILL) at random moments, and the same undisturbed.

Importing torch takes seconds, so that this process does it once, and each attempt at a run is a fork of it.
"""

import itertools
import json
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

import fadeout
from fadeout import _files
from fadeout.experiments import execute as module
from fadeout.experiments.build import build_model, build_optimizer
from fadeout.experiments.data import digits
from fadeout.experiments.disk import checkpoint
from fadeout.experiments.run import Run

SMALL = {"steps": 6, "epochs": 2, "fine_tune": 1, "last_fine_tune": 1}
RUNS = [
    Run(method="han", rounds=2, sparsity=0.8, **SMALL),
    Run(method="liu", structure="channels", sparsity=0.6, learning_rates="cosine", **SMALL),
    Run(method="auto", soft=True, extra_epochs=1, optimizer="adam", lr=0.01, **SMALL),
    Run(method="gmp", structure="channels", sparsity=0.6, seed=1, **SMALL),
    Run(method="rewinding", evaluate_every=3, seed=1, **SMALL),
]
KILLS = 20
STOPPED = 3  # the exit code of a run that a signal has stopped


def child(run, results, prepare=lambda: None, every=0):
    """Carry out a run, or what is left of it, in a fork; returns its number."""
    number = os.fork()
    if number:
        return number
    code = 1
    try:
        prepare()
        module.execute(run, results, checkpoint_every=every)
        code = 0
    except module.Stopped:
        code = STOPPED
    finally:
        os._exit(code)


def finish(run, results):
    assert os.waitpid(child(run, results), 0)[1] == 0, run


def kill_at_random(run, results, seconds):
    """True if it was killed before its end."""
    number = child(run, results)
    time.sleep(random.uniform(0, seconds))
    os.kill(number, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(number, 0)[1])


def kill_at_a_write(run, results, chosen, moment):
    """Let a run die at a write, by its number or name: before, in the middle, before the move, or after."""
    calls = 0
    real = checkpoint.write_atomically

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def write(path, fill):
        nonlocal calls
        calls += 1
        if chosen not in (calls, path.name):
            return real(path, fill)
        if moment == "before":
            die()
        if moment == "moving":
            Path.replace = lambda *paths: die()
        real(path, fill if moment != "middle" else lambda temporary: half(temporary, fill))
        die()

    def half(temporary, fill):
        fill(temporary)
        os.truncate(temporary, temporary.stat().st_size // 2)
        die()

    def prepare():
        for room in (checkpoint, _files):
            room.write_atomically = write

    return os.WIFSIGNALED(os.waitpid(child(run, results, prepare), 0)[1])


def warm_up():
    """What torch imports when it is first used takes longer than a run: here, once, for all forks."""
    model = build_model(RUNS[0], 10)
    optimizer = build_optimizer(RUNS[0], model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    example = digits().example
    fadeout.measure(fadeout.compact(model, example), example)


def more_and_more(runs):
    """The runs, then the same with other seeds, without end."""
    for round in itertools.count():
        yield from (replace(run, seed=run.seed + 10 * round) for run in runs)


def ended(run, results):
    return (Path(results) / run.hash / "result.json").exists()


def main(whole, broken):
    random.seed(0)
    torch.set_num_threads(1)
    warm_up()
    os.fsync = lambda descriptor: None  # for a power failure, which this is not; it can take long
    done = {"random": 0, "before": 0, "middle": 0, "moving": 0, "after": 0, "result": 0}
    for number, run in enumerate(more_and_more(RUNS), 1):
        start = time.monotonic()
        finish(run, whole)
        seconds = time.monotonic() - start
        for moment in ("before", "middle", "moving", "after"):
            done[moment] += kill_at_a_write(run, broken, random.randint(1, 4), moment)
        while done["random"] < KILLS * number / len(RUNS) and not ended(run, broken):
            done["random"] += kill_at_random(run, broken, seconds / 3)
        if not ended(run, broken):
            done["result"] += kill_at_a_write(run, broken, "result.json", random.choice(["before", "moving"]))
            finish(run, broken)
        if number >= len(RUNS) and done["random"] >= KILLS:
            break
    print(json.dumps(done))


if __name__ == "__main__":
    main(*sys.argv[1:])
