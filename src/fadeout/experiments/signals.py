"""Signals that ask a run to stop, which it does when its state is saved."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def asked_to_stop(patient: bool, on_first: Callable[[], object] = lambda: None) -> Iterator[list[int]]:
    """Collect SIGTERM and SIGINT instead of dying from them; only the main thread can.

    Under ``torchrun`` a process is patient: Ctrl-C may reach it twice, from the terminal and from torchrun,
    and the others wait for it to save.

    Args:
        patient: a second signal is only noted, too, and does not raise ``KeyboardInterrupt``.
        on_first: called at the first signal.
    """
    received: list[int] = []

    def note(number: int, frame: object) -> None:
        received.append(number)
        if len(received) == 1:
            on_first()
        elif not patient:  # asked twice: at once
            raise KeyboardInterrupt

    try:
        before = {number: signal.signal(number, note) for number in _SIGNALS}
    except ValueError:
        before = {}
    # a worker of a sweep was born with SIGTERM held back
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM} if before else ())
    try:
        yield received
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: it was not set in Python


@contextmanager
def held_back() -> Iterator[None]:
    """Processes and threads that are started inside never see SIGINT, and SIGTERM only when they are ready.

    What a signal would do to a worker that is still importing its modules, it would do to all: joblib kills
    the others when one dies. Ctrl-C reaches the whole group; the sweep alone hears it, and tells its workers.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


_SIGNALS = (signal.SIGTERM, signal.SIGINT)
