"""The public names and signatures are those that ``fixtures/public_interface.txt`` lists.

A line that is missing breaks somebody's programme. One that is new is added to the file, by hand or by

    PYTHONPATH=src:tests python tests/test_public_interface.py > tests/fixtures/public_interface.txt
"""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fadeout
from fadeout import criteria, export, methods, models, plot, pruners, schedules
from fadeout.methods.slimming import Slimming

LISTED = Path(__file__).parent / "fixtures" / "public_interface.txt"

# What only the library itself calls, although it has no underscore.
INSIDE = {"as_schedule", "bind", "check_elementwise", "gradual", "grouped", "mark", "ranked_together"}

# What a method or a structure of one's own is made from: listed with the classes that it begins with.
TO_BUILD_ON = (fadeout.Structure, *(getattr(pruners, name) for name in pruners.__all__))
HOOKS = {
    *(
        "acts_early",
        "begin",
        "between",
        "check_finite",
        "close",
        "end",
        "evaluation",
        "final_sparsity",
        "groups",
        "held",
    ),
    *("join", "onward", "open", "optimizers", "score_channels", "select", "share", "steps_taken"),
    *("sum_by_channel", "weight", "zero_gradients", "zero_held"),
}


def described() -> list[str]:
    """A line for each public name, with the signature of what can be called."""
    lines: list[str] = []
    for module in (fadeout, criteria, schedules, methods, pruners, models, export):
        for name, value in _members(module):
            lines += _lines(f"{module.__name__}.{name}", value)
    lines += _lines("fadeout.methods.slimming.Slimming", Slimming)
    for name, value in _members(plot):
        lines += _lines(f"fadeout.plot.{name}", value)
    for name, value in _results().items():
        lines += [f"{name}: {', '.join(_attributes(value))}"]
    return lines


def _members(module: Any) -> Iterator[tuple[str, Any]]:
    for name in getattr(module, "__all__", sorted(vars(module))):
        value = getattr(module, name)
        own = hasattr(module, "__all__") or getattr(value, "__module__", None) == module.__name__
        if own and not name.startswith("_") and name not in INSIDE:
            yield name, value


def _lines(name: str, value: Any) -> list[str]:
    if inspect.ismodule(value):
        return [name]
    if not inspect.isclass(value):
        return [f"{name}{_signature(value)}"]
    methods = [
        f"{name}.{member}{_signature(function)}"
        for member in _attributes(value)
        if inspect.isroutine(function := inspect.getattr_static(value, member))
        and getattr(inspect.unwrap(getattr(value, member)), "__module__", "").startswith("fadeout")
    ]
    figures = [n for n in _attributes(value) if isinstance(inspect.getattr_static(value, n), property)]
    listed = [f"{name}: {', '.join(figures)}"] if value in TO_BUILD_ON and figures else []
    return [f"{name}{_signature(value)}", *methods, *listed]


def _attributes(value: Any) -> list[str]:
    hidden = INSIDE if any(value is base for base in TO_BUILD_ON) else INSIDE | HOOKS
    return [name for name in dir(value) if not name.startswith("_") and name not in hidden]


def _signature(function: Any) -> str:
    """Names, kinds and defaults; types may become more exact."""
    if isinstance(function, classmethod | staticmethod):
        function = function.__func__
    found = inspect.signature(function)
    parameters = [
        p.replace(annotation=p.empty, default=p.default if p.default is p.empty else _Named(p.default))
        for p in found.parameters.values()
    ]
    return str(found.replace(parameters=parameters, return_annotation=found.empty))


class _Named:
    """A default that shows the name of a function instead of its address."""

    def __init__(self, value: Any):
        self.value = value

    def __repr__(self) -> str:
        return getattr(self.value, "__name__", repr(self.value))


def _results() -> dict[str, Any]:
    """What calls give back, and what instances carry."""
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    example = torch.zeros(1, 1, 2, 2)
    measured = fadeout.measure(model, example, repeats=2)
    swd = fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.5, steps=2)
    swd.detach()  # one at a time
    gmp = fadeout.methods.GradualMagnitudePruning(model, optimizer, sparsity=0.5, steps=2)
    gmp.detach()
    channels = fadeout.Channels(example)
    return {
        "measure()": measured,
        "measure().total": measured.total,
        "measure().latency": measured.latency,
        "SelectiveWeightDecay": swd,
        "GradualMagnitudePruning": gmp,
        "NoPruning": fadeout.NoPruning(),
        "Slimming": Slimming(model, optimizer, strength=1.0, steps=2, structure=channels),
        "Masks": (masks := swd.masks()),
        "Masks.hold()": masks.hold(model, optimizer),
        "Channels": channels,
        "Elements": fadeout.Elements(),
        "Blocks": fadeout.Blocks(16, 16),
        "NM": fadeout.NM(2, 4),
        "Decay": fadeout.Decay(1.0),
        "Progressive": fadeout.Progressive(),
        "moving_average": criteria.moving_average(criteria.taylor),
    }


def test_names_and_signatures_are_those_that_are_listed():
    found, listed = described(), LISTED.read_text().splitlines()
    gone = [line for line in listed if line not in found]
    new = [line for line in found if line not in listed]
    assert not gone, f"gone or changed: {gone}; new: {new}"
    assert not new, f"not listed yet: {new}"


if __name__ == "__main__":
    print("\n".join(described()))
