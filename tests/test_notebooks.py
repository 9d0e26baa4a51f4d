"""The tutorials run as they stand; they are committed with their outputs, and lead on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.torchrun import ABORTED_AT_ITS_END

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


def test_there_are_five():
    assert len(NOTEBOOKS) == 5


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_there(path):
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] == number for number, cell in enumerate(code, 1))
    assert any(cell["outputs"] for cell in code)
    assert "".join(cells[-1]["source"]).split("\n\n")[-1].startswith("Next: ")


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path):
    pytest.importorskip("sklearn")
    if "export.onnx" in path.read_text():
        pytest.importorskip("onnxruntime")
    command = [sys.executable, str(ROOT / "tools" / "notebooks.py"), "--check", str(path)]
    paths = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    for _ in range(3):
        done = subprocess.run(command, env=os.environ | paths, capture_output=True, text=True, timeout=400)
        if ABORTED_AT_ITS_END not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{path.name} runs\n"
