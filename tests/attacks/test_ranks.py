"""Processes that build different pruners, or none: all of them are told, and nobody waits for long."""

import pytest
from support import different_ranks as cases
from support.processes import Processes

FAST = {"fades", "schedules", "lambdas", "an error on one"}


@pytest.fixture(scope="module")
def processes():
    pool = Processes(2)
    yield pool
    pool.close()


def pairs():
    for pair in cases.PAIRS:
        yield pytest.param(pair, marks=() if pair in FAST else pytest.mark.slow)


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
@pytest.mark.parametrize("pair", list(pairs()))
def test_a_pair_that_differs(processes, how, pair):
    first, last = processes.run(cases.differ, how, pair)
    processes.run(cases.forget)
    words = cases.PAIRS[pair][2]
    assert words in first, (first, last)
    if last not in ("none", "built"):  # where it is not the last that builds no pruner
        assert words in last, (first, last)
    assert processes.run(cases.agree, how) == ["built", "built"]  # and they can meet again


def test_the_message_names_what_differs(processes):
    first, last = processes.run(cases.differ, "ddp", "fades")
    assert first == last
    assert first == (
        "ApartError: the processes have different fade: Progressive() on process 0, Latent() on process 1. "
        "Give all of them the same"
    )
