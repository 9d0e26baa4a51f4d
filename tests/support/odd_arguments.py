"""Every public constructor and function, called with one odd argument at a time."""

import inspect
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import fadeout
from fadeout import criteria, export, methods, models, schedules
from fadeout.methods.slimming import Slimming
from fadeout.torch_bridge.parameters import has_two_dimensions

IMAGE = torch.zeros(2, 1, 4, 4)


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))


class Bench:
    """What a trial works on: a network, its optimizer, and good arguments by name."""

    def __init__(self, folder: Path):
        torch.manual_seed(0)
        self.model = network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        weight = torch.ones(2, 3)
        self.good: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "sparsity": 0.25,
            "steps": 10,
            "structure": fadeout.Elements(),
            "criterion": criteria.magnitude,
            "before": None,
            "fade": fadeout.Progressive(),
            "prunable": lambda name, parameter: parameter.dim() > 1,
            "fine_tune": lambda number: None,
            "strength": 0.5,
            "example_input": IMAGE,
            "path": folder / "file",
            "build": network,
            "masks": {"0.weight": torch.ones(4, 1, 1, 1, dtype=torch.bool)},
            "state": {},
            "weight": weight,
            "gradient": weight,
            "old": weight,
            "new": weight,
            "value": 1.0,
            "start": 1.0,
            "end": 2.0,
            "width": 2,
            "dim": 12,
            "growth": 2,
            "width_mult": 0.1,
            "features": 5,
        }

    def pruner(self) -> Any:
        return fadeout.SelectiveWeightDecay(self.model, self.optimizer, sparsity=0.25, steps=10)

    def masks(self) -> Any:
        return fadeout.Masks(self.good["masks"])


class Callee(NamedTuple):
    """Something public that takes arguments."""

    name: str
    get: Callable[[Bench], Callable[..., Any]]
    signature: inspect.Signature
    good: dict[str, Any]
    """Arguments that differ from the usual."""

    @property
    def arguments(self) -> list[str]:
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return [p.name for p in self.signature.parameters.values() if p.kind not in kinds]

    def filled(self, bench: Bench) -> dict[str, Any]:
        """Good arguments; those without a default must have one in the bench."""
        filled = {}
        for name in self.arguments:
            known = {**bench.good, **self.good}
            assert name in known or self.signature.parameters[name].default is not inspect.Parameter.empty, (
                f"{self.name} has a new argument {name!r}: give Bench a good value for it"
            )
            if name in known:
                filled[name] = known[name]
        return filled


# What the library calls, and what is only ever handed out.
NOT_FOR_USERS = {"as_schedule", "check_elementwise", "Exported"}


def callees() -> Iterator[Callee]:
    """All public names, found anew."""
    found = {}
    for module in (fadeout, criteria, schedules, methods, models, export):
        for name in getattr(module, "__all__", sorted(vars(module))):
            value = getattr(module, name)
            own = hasattr(module, "__all__") or getattr(value, "__module__", None) == module.__name__
            if own and callable(value) and not name.startswith("_") and name not in NOT_FOR_USERS:
                found[value] = f"{module.__name__}.{name}"
    found[Slimming] = "fadeout.methods.slimming.Slimming"
    for value, name in found.items():
        if not inspect.isabstract(value) and inspect.signature(value).parameters:
            yield Callee(name, lambda bench, value=value: value, inspect.signature(value), special(value))
    yield from bound_methods()


def special(value: Any) -> dict[str, Any]:
    """Where a good argument is another than usual."""
    channels = {"structure": fadeout.Channels(IMAGE), "prunable": has_two_dimensions}
    if inspect.isclass(value) and issubclass(value, methods.HESSO | methods.GrowingRegularization | Slimming):
        return channels
    return {"heads": 3} if value is models.vit else {}


def bound_methods() -> Iterator[Callee]:
    """Methods that a user calls; those of fades and structures are called by a pruner."""
    for cls, get, names in (
        (fadeout.SelectiveWeightDecay, Bench.pruner, ("attach", "load_state_dict")),
        (fadeout.Masks, Bench.masks, ("apply", "hold", "save", "load")),
        (criteria.moving_average, lambda bench: criteria.moving_average(criteria.taylor), ("update",)),
    ):
        for name in names:
            signature = inspect.signature(getattr(get(Bench(Path())), name))
            yield Callee(
                f"{cls.__name__}.{name}", lambda b, get=get, name=name: getattr(get(b), name), signature, {}
            )


class Odd:
    """An object of no use."""


ODD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "False": lambda: False,
    "0": lambda: 0,
    "1": lambda: 1,
    "-1": lambda: -1,
    "3": lambda: 3,
    "0.5": lambda: 0.5,
    "2.5": lambda: 2.5,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "10**30": lambda: 10**30,
    "complex": lambda: 1j,
    "np.int64": lambda: np.int64(3),
    "np.float32": lambda: np.float32(0.5),
    "np.bool": lambda: np.bool_(True),
    "array": lambda: np.arange(3.0),
    "empty text": lambda: "",
    "text": lambda: "channels",
    "bytes": lambda: b"channels",
    "empty list": lambda: [],
    "list": lambda: [1, 2],
    "names": lambda: ["no.such.weight"],
    "tuple": lambda: (0.5,),
    "empty dict": lambda: {},
    "dict": lambda: {"a": 1},
    "set": lambda: {1},
    "generator": lambda: (number for number in (1, 2)),
    "object": Odd,
    "class": lambda: Odd,
    "its own class": lambda: fadeout.Elements,
    "type": lambda: int,
    "builtin": lambda: len,
    "function of nothing": lambda: lambda: 1,
    "function that fails": lambda: lambda *args: 1 / 0,
    "function of text": lambda: lambda *args: "much",
    "module": lambda: nn.Linear(2, 2),
    "empty module": nn.Module,
    "scalar tensor": lambda: torch.tensor(0.5),
    "integer tensor": lambda: torch.arange(3),
    "empty tensor": lambda: torch.zeros(0),
    "tensor": lambda: torch.ones(5, 7),
    "meta tensor": lambda: torch.ones(2, 3, device="meta"),
    "optimizer": lambda: torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1),
    "fade": fadeout.Progressive,
    "structure": fadeout.Elements,
}
