"""Run the fast tests with the oldest versions that pyproject.toml states.

    python3.10 tools/oldest.py                              # all fast tests, with torch 2.5
    python3.11 tools/oldest.py --torch 2.13.0+cpu -- -x tests/methods

The environment has the Python that this is run with, and is made in a temporary folder. On Linux, PyTorch's
own index has builds for CPUs, which spare gigabytes: say where it is with ``PIP_EXTRA_INDEX_URL``, and
``--torch 2.5.0+cpu``.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTING = ["hypothesis", "pytest", "pytest-xdist"]


def oldest(pyproject: str, extras: tuple[str, ...] = ("experiments",)) -> list[str]:
    """The requirements of the library and of some extras, each at its lower bound.

    >>> oldest('dependencies = ["torch>=2.5", "numpy>=1.26"]\\nplot = ["matplotlib>=3.8"]', ("plot",))
    ['torch==2.5', 'numpy==1.26', 'matplotlib==3.8']
    """
    found = []
    for name in ("dependencies", *extras):
        listed = re.search(rf"^{name} = \[(.*?)\]$", pyproject, re.DOTALL | re.MULTILINE)
        if listed is None:
            raise ValueError(f"pyproject.toml has no {name}")
        found += re.findall(r'"([^"]+)"', listed[1])
    return [requirement.replace(">=", "==") for requirement in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--torch", help="instead of the oldest, where that has no build")
    parser.add_argument("arguments", nargs="*", help="of pytest, after --")
    asked = parser.parse_args()
    wanted = oldest((ROOT / "pyproject.toml").read_text())
    if asked.torch:
        wanted = [f"torch=={asked.torch}" if each.startswith("torch==") else each for each in wanted]
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin", "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted, *TESTING], check=True)
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        # old packages complain of what is newer below them: that is no fault here
        command = [python, "-m", "pytest", "-q", "-W", "default::DeprecationWarning", *asked.arguments]
        return subprocess.run(command, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
