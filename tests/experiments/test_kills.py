"""Runs that are killed at any moment end as if nothing had happened, bit for bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.helpers import same

from fadeout.experiments.disk.record_file import read_record

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parents[1] / "support" / "killing.py"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two folders of the same runs, undisturbed and killed again and again; and how often they were."""
    whole, broken = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("broken")
    done = subprocess.run(
        [sys.executable, PROGRAM, whole, broken],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return whole, broken, json.loads(done.stdout)


def test_twenty_random_moments_and_every_moment_of_a_write(folders):
    done = folders[2]
    assert done["random"] >= 20
    assert all(done[moment] >= 5 for moment in ("before", "middle", "moving", "after"))
    assert done["result"] > 0  # between the last checkpoint and the result


def test_metrics_weights_and_results_are_the_same(folders):
    whole, broken, _ = folders
    names = sorted(path.name for path in whole.iterdir())
    assert names == sorted(path.name for path in broken.iterdir())
    for name in names:
        assert (whole / name / "metrics.jsonl").read_bytes() == (broken / name / "metrics.jsonl").read_bytes()
        states = [torch.load(place / name / "checkpoint") for place in (whole, broken)]
        results = [read_record(place / name / "result.json") for place in (whole, broken)]
        for one in (*states, *results):
            assert one.pop("seconds") > 0
        same(*states)
        same(*results)


def test_nothing_half_is_left(folders):
    wanted = ["checkpoint", "config.json", "lock", "metrics.jsonl", "result.json"]
    for folder in folders[1].iterdir():
        assert sorted(path.name for path in folder.iterdir()) == wanted
