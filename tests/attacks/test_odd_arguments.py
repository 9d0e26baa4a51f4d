"""Odd arguments to everything public: refused with the argument's name, or as good as any other."""

import random
import warnings
from pathlib import Path

import pytest
import torch
from support.odd_arguments import ODD, Bench, Callee, callees, network

import fadeout
from fadeout.pruners.step_pruner import StepPruner

FAST = 200
OWN_PROGRAMS = {"build", "fine_tune"}  # what goes wrong inside is the user's, and comes out as it is


def trials() -> list[tuple[Callee, str, str]]:
    return [(callee, name, odd) for callee in callees() for name in callee.arguments for odd in ODD]


def check(callee: Callee, name: str, odd: str, folder) -> None:
    """One call. What is accepted must work; what is refused is named, and leaves nothing behind."""
    where = f"{callee.name}({name}=<{odd}>)"
    bench = Bench(folder)
    function, arguments = callee.get(bench), {**callee.filled(bench), name: ODD[odd]()}
    if callee.name == "fadeout.load":
        fadeout.save(network(), folder / "file")
    if callee.name == "Masks.load":
        bench.masks().save(folder / "file")
    before = [parameter.clone() for parameter in bench.model.parameters()]
    hooks = hooks_on(bench.optimizer)
    said = outcome(lambda: use(function(**arguments), bench))
    if name in OWN_PROGRAMS and callable(arguments[name]):
        return
    if isinstance(said, OSError):
        assert name == "path", f"{where}: {said}"
    elif said is not None:
        assert isinstance(said, ValueError | TypeError), f"{where}: {type(said).__name__}: {said}"
        assert name in str(said), f"{where}: {said}"
        assert hooks_on(bench.optimizer) == hooks, where
        assert all(map(torch.equal, before, bench.model.parameters())), where


def outcome(call) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def use(result, bench) -> None:
    """Whatever was accepted is used once."""
    if not isinstance(result, StepPruner):
        return
    try:
        bench.model(torch.ones(2, 1, 4, 4)).square().mean().backward()
        bench.optimizer.step()
        repr(result)
        result.remove()
    except ValueError:
        result.detach()
        raise


def hooks_on(optimizer: torch.optim.Optimizer) -> int:
    return len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)


def attack(chosen, folder) -> None:
    failures = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for callee, name, odd in chosen:
            try:
                check(callee, name, odd, folder)
            except Exception as error:
                failures.append(f"{callee.name}({name}=<{odd}>): {type(error).__name__}: {error}")
    assert not failures, f"{len(failures)} of {len(chosen)}:\n" + "\n".join(failures[:20])


def test_a_sample(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = [trial for trial in trials() if not trial[0].name.startswith("fadeout.export")]
    attack(random.Random(0).sample(chosen, FAST), tmp_path)


@pytest.mark.slow
def test_all(tmp_path, monkeypatch):
    """Of the exports and large networks only some: they are slow when they are not refused."""
    monkeypatch.chdir(tmp_path)
    chosen = trials()
    assert len(chosen) >= 3000
    slow = [t for t in chosen if t[0].name.startswith(("fadeout.export", "fadeout.models"))]
    others = [t for t in chosen if t not in slow]
    assert len(others) >= 2500
    attack(others + random.Random(0).sample(slow, 600), tmp_path)


@pytest.mark.parametrize("number", [torch.tensor(100), 100.0])
def test_numbers_of_others_are_numbers(number):
    numpy = pytest.importorskip("numpy")
    for steps in (number, numpy.int64(100), numpy.float32(100)):
        bench = Bench(Path())
        pruner = fadeout.SelectiveWeightDecay(
            bench.model, bench.optimizer, sparsity=numpy.float32(0.25), steps=steps
        )
        assert type(pruner.steps) is int
        assert type(pruner.sparsity) is float
