"""A training with each trainer of others is killed (SIGKILL), resumed, and ends as if nothing had been."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).parents[1]
PROGRAM = TESTS / "support" / "killed_trainings.py"
MATRICES = 16 * 32 + 32 * 4
YOLO = 8 * 3 * 9 + 16 * 8 * 9 + 1280 * 16 + 2 * 1280
BERT = 4 * 16 * 16 + 2 * 16 * 32 + 16 * 16  # attention, the two layers after it, the pooler


def left(weights):
    return weights - round(0.9 * weights)


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
    command = [sys.executable, PROGRAM, trainer, package, tmp_path]
    paths = [str(TESTS.parent / "src"), str(TESTS)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    whole, resumed = (torch.load(tmp_path / f"{how}.pt", weights_only=True) for how in ("whole", "resumed"))
    same_bits(resumed, whole)
    matrices = [weight for weight in resumed.values() if weight.dim() > 1]
    assert sum(int(weight.count_nonzero()) for weight in matrices) == copies * left(weights)
