"""Signals that ask a run to stop, which it does when its state is saved."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def asked_to_stop(patient: bool) -> Iterator[list[int]]:
    """Collect SIGTERM and SIGINT instead of dying from them; only the main thread can.

    Under ``torchrun`` a process is patient: Ctrl-C may reach it twice, from the terminal and from torchrun,
    and the others wait for it to save.
    """
    received: list[int] = []

    def note(number: int, frame: object) -> None:
        received.append(number)
        if len(received) > 1 and not patient:  # asked twice: at once
            raise KeyboardInterrupt

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:
        before = {}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: it was not set in Python
