"""A training with each trainer of others is killed (SIGKILL), resumed, and ends as if nothing had been."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).parents[1]
MATRICES = 16 * 32 + 32 * 4
YOLO = 8 * 3 * 9 + 16 * 8 * 9 + 1280 * 16 + 2 * 1280
BERT = 4 * 16 * 16 + 2 * 16 * 32 + 16 * 16  # attention, the two layers after it, the pooler


def left(weights):
    return weights - round(0.9 * weights)


def start(trainer, folder, how):
    command = [sys.executable, str(TESTS / "support" / "killed_trainings.py"), trainer, str(folder), how]
    paths = [str(TESTS.parent / "src"), str(TESTS)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(trainer, folder, how):
    with start(trainer, folder, how) as process:
        complaint = process.communicate(timeout=300)[1]
    assert process.returncode == 0, complaint
    return torch.load(folder / f"{how}.pt", weights_only=True)


def kill(trainer, folder):
    with start(trainer, folder, "killed") as process:
        assert process.stdout is not None
        assert "here\n" in process.stdout, process.communicate()  # reads until it is said, or all is over
        process.kill()
        process.communicate(timeout=60)
    assert process.returncode == -9
    assert not (folder / "killed.pt").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "package", "weights", "copies"),
    [
        ("lightning", "lightning", MATRICES, 1),
        ("transformers", "transformers", BERT, 1),
        ("accelerate", "accelerate", MATRICES, 1),
        ("ultralytics", "ultralytics", YOLO, 2),
        ("ultralytics_between", "ultralytics", YOLO, 2),
    ],
)
def test_killed_and_resumed(trainer, package, weights, copies, tmp_path, same_bits):
    pytest.importorskip("cv2" if package == "ultralytics" else package)
    whole = finish(trainer, tmp_path, "whole")
    kill(trainer, tmp_path)
    resumed = finish(trainer, tmp_path, "resumed")
    same_bits(resumed, whole)
    matrices = [weight for weight in resumed.values() if weight.dim() > 1]
    assert sum(int(weight.count_nonzero()) for weight in matrices) == copies * left(weights)
