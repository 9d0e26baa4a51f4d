"""Every example runs as a user would run it, and ends well."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = {
    "accelerated.py": r"9\d\.\d+% right, Masks\(2 parameters, 740 of 7400 .*, saved and taken up again",
    "train.py": r"(9\d\.\d+) % before removal, \1 % after it: Masks\(3 parameters, 1740 of 17400 ",
    "channels.py": r"small: 9\d\.\d+% right, 4,\d{3} parameters",
    "schedule_free.py": r"9\d\.\d+% right, Masks\(2 parameters, 740 of 7400 .*, 740 in evaluation mode",
    "ddp.py": r"9\d\.\d+% right, Masks\(2 parameters, 740 of 7400 .*, the same on all 2 ranks: True",
}

SLOW = ["accelerated.py", "channels.py", "ddp.py", "schedule_free.py"]
NEEDS = {"accelerated.py": ["accelerate"], "schedule_free.py": ["schedulefree"]}  # of the extra zoo


def test_every_example_is_tested():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == EXAMPLES.keys()


@pytest.mark.parametrize("name", ["train.py", *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_example(tmp_path, name):
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *(torchrun if name == "ddp.py" else []), str(ROOT / "examples" / name)]
    paths = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    environment = os.environ | paths
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert re.search(EXAMPLES[name], done.stdout), done.stdout
    assert [path.name for path in tmp_path.iterdir()] == (["small.onnx"] if name == "channels.py" else [])
