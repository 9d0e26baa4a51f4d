"""The programs in the documents run as they stand there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fadeout

ROOT = Path(__file__).parent.parent
PROGRAMS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "distributed.md").read_text(), re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))
def test_distributed(tmp_path, number):
    (tmp_path / "train.py").write_text(PROGRAMS[number])
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--standalone",
        "train.py",
    ]
    paths = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | paths,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Masks(2 parameters, 125 of 1250 weights left)" in done.stdout
    model = fadeout.load(
        tmp_path / "model.safetensors",
        lambda: torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 5)),
    )
    assert sum(int(p.count_nonzero()) for p in model.parameters() if p.dim() == 2) <= 125
