"""Ctrl-C while a command is still being imported, which takes seconds because torch does.

Nothing has been done yet that could be lost, so the process just ends, as it does later on: Python's own
traceback would be of modules that the user has never heard of. Programs that import the library are left
alone.
"""

import os
import signal
import sys


def end_quietly() -> None:
    """From now on Ctrl-C ends the process, if it is a command's, until :func:`raise_again`."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # nohup has it ignored
    if is_default and _program() == "fadeout":
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """Let Ctrl-C raise ``KeyboardInterrupt`` again, where it does not."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _program() -> str:
    """The script that Python was started for, or the module: ``sys.argv`` does not have its name yet.

    Processes that a program starts through multiprocessing have that program's ``sys.argv``, and a program
    may have taken words out of its own.
    """
    word = sys.orig_argv[-len(sys.argv)] if 0 < len(sys.argv) <= len(sys.orig_argv) else ""
    if word and sys.argv[0] not in ("-m", word):
        return ""
    return os.path.splitext(os.path.basename(word.removeprefix("-m")))[0]


def _end(number: int, frame: object) -> None:
    os.write(2, b"fadeout: stopped\n")
    os._exit(130)  # an exception might be caught by what is being imported


end_quietly()
