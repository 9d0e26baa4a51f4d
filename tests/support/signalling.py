"""A program for test_signals.py: runs that get SIGINT and SIGTERM at random moments, and undisturbed ones.

Nothing but the signals makes them save, so that without a checkpoint at each they would never come to an end.
Every second signal waits until its run listens: how many come too early otherwise is up to the machine.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from support.killing import RUNS, STOPPED, child, ended, finish, more_and_more, warm_up

from fadeout.experiments import execute as execute_module

SIGNALS = 40


def main(whole, broken):
    random.seed(0)
    torch.set_num_threads(1)
    warm_up()
    done = {"signals": 0, "saved": 0, "early": 0}
    for run in more_and_more(RUNS):
        start = time.monotonic()
        finish(run, whole)
        seconds = time.monotonic() - start
        while done["signals"] < SIGNALS and not ended(run, broken):
            number = child_that_listens(run, broken) if done["signals"] % 2 else child(run, broken, every=1e9)
            time.sleep(random.uniform(0, seconds / 2))
            os.kill(number, random.choice([signal.SIGINT, signal.SIGTERM]))
            code = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
            if code == 0:
                continue  # it had ended before
            done["signals"] += 1
            # before it listened to signals it had nothing to save; else it stops, and has saved
            done["saved"] += code == STOPPED and saved(Path(broken) / run.hash)
            done["early"] += code in (1, -signal.SIGTERM)
        finish(run, broken)
        if done["signals"] >= SIGNALS:
            break
    print(json.dumps(done))


def child_that_listens(run, results):
    """A child, as soon as a signal makes it save."""
    listens, says_so = os.pipe()
    asked_to_stop = execute_module.asked_to_stop

    @contextlib.contextmanager
    def say_so(**options):
        with asked_to_stop(**options) as stopping:
            os.close(says_so)
            yield stopping

    def prepare():
        os.close(listens)
        execute_module.asked_to_stop = say_so

    number = child(run, results, prepare, every=1e9)
    os.close(says_so)
    os.read(listens, 1)  # until it is closed there, too
    os.close(listens)
    return number


def saved(folder):
    return (folder / "checkpoint").exists() or (folder / "result.json").exists()


if __name__ == "__main__":
    main(*sys.argv[1:])
