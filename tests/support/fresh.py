"""Programs in processes of their own that have imported torch, and nothing of ours.

To import torch takes seconds, so that one process does it once, and each program runs in a fork of it.
"""

import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple


class Done(NamedTuple):
    """What a program ended with, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


class Fresh:
    """The process that has imported torch; called with a program, it runs it to its end."""

    def __init__(self):
        pipe = subprocess.PIPE
        self._server = subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe, text=True)

    def __call__(self, program: str, cwd: Path | None = None) -> Done:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            files = [os.path.join(folder, name) for name in ("stdout", "stderr")]
            print(json.dumps([program, str(cwd or folder), files]), file=self._server.stdin, flush=True)
            code = int(self._server.stdout.readline())
            return Done(code, *(Path(file).read_text() for file in files))

    def close(self) -> None:
        self._server.communicate()


def asked_for() -> list[Any]:
    """In a new fork, what it is to run; here, its exit code is printed."""
    for line in sys.stdin:
        number = os.fork()
        if not number:
            return json.loads(line)
        print(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]), flush=True)
    sys.exit()


if __name__ == "__main__":
    importlib.import_module("torch._dynamo")  # with torch itself
    gc.freeze()  # each fork, as it ends, would look through all of it once more
    program, folder, files = asked_for()
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(folder)
    sys.argv, sys.path[0] = ["-c"], ""  # as of python -c
    exec(program, {"__name__": "__main__"})  # and it ends as Python ends
