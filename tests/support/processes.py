"""Real processes with a process group, to which a test sends functions."""

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

_SECONDS = 120


class Processes:
    """So many processes, connected over gloo; they wait for functions until they are closed.

    Functions are sent by reference, so they stand at the top of a module that the processes can import. To
    import torch takes seconds, so that a server does it once, and each process is a fork of it.
    """

    def __init__(self, size: int, **environment: str):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["support.distributed_cases"])
        self._folder = tempfile.TemporaryDirectory()
        self._pipes, self._processes = [], []
        for rank in range(size):
            mine, theirs = context.Pipe()
            arguments = (rank, size, os.path.join(self._folder.name, "store"), theirs, environment)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            self._pipes.append(mine)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What a function returns in each process; an assertion that fails in one of them fails here."""
        for pipe in self._pipes:
            pipe.send((function, arguments))
        answers = []
        for rank, pipe in enumerate(self._pipes):
            assert pipe.poll(_SECONDS), f"process {rank} does not answer"
            answers.append(pipe.recv())
        for rank, (error, _) in enumerate(answers):
            assert not error, f"in process {rank}:\n{error}"
        return [answer for _, answer in answers]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()


def _serve(rank: int, size: int, store: str, pipe: Any, environment: dict[str, str]) -> None:
    import torch
    import torch.distributed as dist

    os.environ.update(environment)
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    while True:
        function, arguments = pipe.recv()
        try:
            pipe.send(("", function(*arguments)))
        except BaseException:
            pipe.send((traceback.format_exc(), None))
