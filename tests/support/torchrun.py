"""Programs under torchrun, which end when they are done.

While Python ends, gloo's threads may let go of the last tensors, and abort a process that did all it had to
(https://github.com/pytorch/pytorch/issues/190489; a program of PyTorch alone too, one of 25 on a busy machine). So
a program runs to its last line here, and its process ends without that part.
"""

import os
import runpy
import sys


def torchrun(program: str | os.PathLike[str], *arguments: str, size: int = 2) -> list[str]:
    """The command that runs a program on so many processes."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    return [*start, __file__, str(program), *arguments]


if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
