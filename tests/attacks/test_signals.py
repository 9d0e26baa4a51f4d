"""Signals to runs and sweeps, at any moment: all that was done is saved, and goes on from there."""

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.helpers import same, wait_for

from fadeout.experiments.disk.checkpoint import read_checkpoint
from fadeout.experiments.run import Run

pytestmark = pytest.mark.slow
SUPPORT = Path(__file__).parents[1] / "support"


def environment():
    paths = [str(SUPPORT.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def test_forty_signals_to_runs(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    command = [sys.executable, SUPPORT / "signalling.py", whole, broken]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=600)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["signals"] == 40
    assert counts["saved"] + counts["early"] == 40
    assert counts["saved"] >= 20
    names = sorted(path.name for path in whole.iterdir())
    assert names == sorted(path.name for path in broken.iterdir())
    for name in names:
        assert (whole / name / "metrics.jsonl").read_bytes() == (broken / name / "metrics.jsonl").read_bytes()
        states = [torch.load(place / name / "checkpoint") for place in (whole, broken)]
        for state in states:
            assert state.pop("seconds") > 0
        same(*states)


RUNS = [Run(method="gmp", epochs=10**6, steps=2, evaluate_every=5, seed=seed) for seed in range(2)]
SWEEP = """
import sys
from fadeout.experiments.execute import Stopped
from fadeout.experiments.run import Run
from fadeout.experiments.sweep import sweep
if __name__ == "__main__":
    runs = [Run(method="gmp", epochs=10**6, steps=2, evaluate_every=5, seed=seed) for seed in range(2)]
    try:
        sweep(runs, sys.argv[1], jobs=2, checkpoint_every=1e9)
    except Stopped:
        sys.exit(130)
"""


def test_signals_to_sweeps(tmp_path):
    """To the sweep alone, and to it and its workers at once, as Ctrl-C does: each time both workers save."""
    results, program = tmp_path / "runs", tmp_path / "program.py"
    program.write_text(SWEEP)
    folders, reached = [results / run.hash for run in RUNS], [0, 0]
    for number, send in itertools.product((signal.SIGINT, signal.SIGTERM), (os.kill, os.killpg)):
        sizes = [_size(folder) for folder in folders]
        command = [sys.executable, program, results]
        with subprocess.Popen(command, env=environment(), start_new_session=True) as sweep:
            wait_for(lambda sizes=sizes: all(_size(f) > size for f, size in zip(folders, sizes, strict=True)))
            send(sweep.pid, number)
            assert sweep.wait(timeout=120) == 130
        epochs = [read_checkpoint(folder)["epoch"] for folder in folders]
        assert all(now > before for now, before in zip(epochs, reached, strict=True))
        reached = epochs
    assert sorted(path.name for path in results.iterdir()) == sorted(folder.name for folder in folders)


def _size(folder):
    path = folder / "metrics.jsonl"
    return path.stat().st_size if path.exists() else 0
