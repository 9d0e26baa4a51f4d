"""Programs under torchrun, which end when they are done.

While Python ends, gloo's threads may let go of the last tensors, and abort a process that is done, be it one
of PyTorch alone (https://github.com/pytorch/pytorch/issues/190489). So a program runs to its last line here,
and its process ends without that part.
"""

import os
import runpy
import sys

ABORTED_AT_ITS_END = "terminate called without an active exception"
"""What such a process says, where a program must be run as it is."""


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
