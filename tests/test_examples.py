"""Every example runs as a user would run it, and ends well."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import support.torchvision_stubs  # noqa: F401  before torchvision is looked for
from support.torchrun import torchrun

ROOT = Path(__file__).parent.parent
EXAMPLES = {
    "accelerated.py": r"9\d\.\d+% right, Masks\(2 parameters, 740 of 7400 .*, saved and taken up again",
    "train.py": r"(9\d\.\d+) % before removal, \1 % after it: Masks\(3 parameters, 1740 of 17400 ",
    "channels.py": r"small: 9\d\.\d+% right, 4,\d{3} parameters",
    "graph.py": r"(8\d\.\d%) right before removal, \1 after it: Masks\(2 parameters, 2304 of 23040 ",
    "timm_training.py": r"trained: 9\d\.\d+% right, 37128 of 371280 .*\naveraged: 9\d\.\d+% right, 37128 of ",
    "torchvision_training.py": r"trained: 9\d\.\d+% right, 34408 of .*\naveraged: 9\d\.\d+% right, 34408 of ",
    "schedule_free.py": r"9\d\.\d+% right, Masks\(2 parameters, 740 of 7400 .*, 740 in evaluation mode",
    "ddp.py": r"9\d\.\d+% right, Masks\(2 parameters, 740 of 7400 .*, the same on all 2 ranks: True",
}

NEEDS = {  # of the extra zoo
    "accelerated.py": "accelerate",
    "graph.py": "torch_geometric",
    "schedule_free.py": "schedulefree",
    "timm_training.py": "timm",
    "torchvision_training.py": "torchvision",
}
STUBBED = "import runpy, sys, support.torchvision_stubs; runpy.run_path(sys.argv[1], run_name='__main__')"


def test_every_example_is_tested():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == EXAMPLES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_example(tmp_path, name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    if name == "graph.py" and not os.environ.get("FADEOUT_DATA"):
        pytest.skip("set FADEOUT_DATA to the folder of the data sets")
    options = {
        "timm_training.py": ["-c", STUBBED],
        "torchvision_training.py": ["-c", STUBBED],
    }
    example = str(ROOT / "examples" / name)
    command = torchrun(example) if name == "ddp.py" else [sys.executable, *options.get(name, []), example]
    paths = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    environment = os.environ | paths
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert re.search(EXAMPLES[name], done.stdout), done.stdout
    assert [path.name for path in tmp_path.iterdir()] == (["small.onnx"] if name == "channels.py" else [])
