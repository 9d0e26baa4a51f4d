"""What a run is: its settings, the name of its folder, its phases."""

import hashlib
import inspect
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, make_dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

from torch import nn

from fadeout import models
from fadeout._checks import known
from fadeout.experiments import data
from fadeout.experiments.training import LEARNING_RATES
from fadeout.methods.method import Phase
from fadeout.methods.registry import METHODS, OPTIONS

DATA: dict[str, Callable[..., Any]] = {
    name: getattr(data, name) for name in data.__all__ if inspect.isfunction(getattr(data, name))
}
MODELS: dict[str, Callable[..., nn.Module]] = {name: getattr(models, name) for name in models.__all__}

# These are in every record of version 1. A field that came later is written only where it says something, so
# that records of one run are equal, whichever version wrote them
_FIRST_OPTIONS = ("a_min", "a_max", "mu", "rounds", "fine_tune", "last_fine_tune", "smooth_l1")
_LATER = {"later": True}


@dataclass(frozen=True)
class Common:
    """The settings that every run has, whatever its method."""

    data: str = "digits"
    """the data set"""
    model: str = "smallcnn"
    """the network"""
    width: int | None = None
    """feature maps of the network's first stage, or hidden units; by default the network's own"""
    norm: bool = field(default=True, metadata=_LATER)
    """the network has batch-norms, where it leaves the choice; --no-norm takes them out"""
    residual: Literal["normed", "plain", "zero"] = field(default="normed", metadata=_LATER)
    """residual blocks as in the paper, with a batch-norm after each addition; plain; or beginning at zero"""
    method: str = "auto"
    """how it is pruned"""
    structure: Literal["elements", "channels", "blocks", "nm"] = "elements"
    """single weights, whole channels, tiles of rows by columns, or all but n of every m weights"""
    rows: int = field(default=16, metadata=_LATER)
    """of a tile, with blocks"""
    columns: int = field(default=16, metadata=_LATER)
    """of a tile, with blocks"""
    n: int = field(default=2, metadata=_LATER)
    """weights that stay of every m, with nm; more where the sparsity is below 1 - n / m"""
    m: int = field(default=4, metadata=_LATER)
    """weights of a group, with nm"""
    sparsity: float = 0.9
    """the fraction to remove: of the prunable weights, or with channels of all parameters; nm removes at most
    1 - n / m, and that if no sparsity is given"""
    seed: int = 0
    """of the initialisation, the order of the data, augmentation and dropout: the same for every method"""

    epochs: int = 60
    """of training; the fine-tuning of some methods comes on top"""
    batch_size: int = 64
    """examples in a step"""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """what trains"""
    lr: float = 0.1
    """the base learning rate"""
    momentum: float = 0.9
    """of SGD"""
    weight_decay: float = 5e-4
    """of all parameters"""
    learning_rates: str = "thirds"
    """how the learning rate goes: thirds, constant, cosine, cosine_to_zero or restarts"""
    soft: bool = False
    """also set the lowest weights to zero at the beginning of each epoch, free to grow again"""
    extra_epochs: int = 0
    """train on, without what is removed, after all else"""

    min_channels: int = 1
    """channels that each layer keeps; with 0 a layer may collapse, as in the paper"""
    of: Literal["parameters", "operations", "time"] = field(default="parameters", metadata=_LATER)
    """what the sparsity counts, with channels; time is that of a forward pass, as measured"""
    time_batch: int = field(default=1, metadata=_LATER)
    """examples in the forward pass whose time counts"""
    engine: Literal["pytorch", "channels_last", "onnxruntime"] = field(default="pytorch", metadata=_LATER)
    """where a network that loses time is to be fast"""
    multiple_of: int | None = field(default=None, metadata=_LATER)
    """layers keep multiples of so many channels; 0 is 8 or 16, as measured here, and the default for time"""
    couple: bool = field(default=False, metadata=_LATER)
    """with channels: both sides of an addition keep the same ones, so that none are gathered by index"""
    preset: Literal["paper", "authors"] = "paper"
    """where the authors' code differs from their paper, which to follow"""
    validation: bool = False
    """test on a held-out part of the training data instead of the test data"""
    epochs_scale: float = 1.0
    """shorten all phases in proportion; results are marked"""
    steps: int | None = None
    """at most so many steps in an epoch, for a trial; results are marked"""
    precision: Literal["float32", "bfloat16"] = field(default="float32", metadata=_LATER)
    """of the network's computations while it trains; bfloat16 is twice as fast where the processor has it"""
    compile: bool = False
    """run the network through torch.compile: worth it on a GPU, or for long runs"""
    evaluate_every: int = 1
    """epochs between two tests"""


def _declare(name: str) -> tuple[str, Any, Any]:
    kind, default, _ = OPTIONS[name]
    return name, kind, field(default=default, metadata={} if name in _FIRST_OPTIONS else _LATER)


_Options: Any = make_dataclass("_Options", [_declare(name) for name in OPTIONS], frozen=True)
_Options.__doc__ = "The options of all methods.\n\nAttributes:\n" + "".join(
    f"    {name}: {option.help}\n" for name, option in OPTIONS.items()
)


@dataclass(frozen=True)
class Run(_Options, Common):
    """All that decides the outcome of a run. Two runs with equal fields are the same run.

    The fields are those of :class:`Common` and the options of all methods, each of which is declared in the
    method's own file (:class:`fadeout.methods.method.Method`).

    >>> run = Run(data="digits", model="smallcnn", method="auto", sparsity=0.9, epochs=2)
    >>> [phase.name for phase in replace(run, method="han", rounds=3).phases()]
    ['train', 'fine-tune 1', 'fine-tune 2', 'fine-tune 3']
    """

    def __post_init__(self):
        known("data", self.data, DATA)
        known("model", self.model, MODELS)
        known("method", self.method, METHODS)
        known("learning_rates", self.learning_rates, LEARNING_RATES)
        if not 0 < self.sparsity < 1:
            hint = f". Did you mean {self.sparsity / 100:g}?" if 1 < self.sparsity < 100 else ""
            raise ValueError(f"sparsity is a fraction between 0 and 1, got {self.sparsity}{hint}")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed is a whole number from 0 to 2**32 - 1, got {self.seed}")
        for each in fields(self):
            value: Any = getattr(self, each.name)
            if isinstance(value, str):
                known(each.name, value, get_args(each.type) or [value])
            elif each.name in _POSITIVE and value is not None and not value > 0:
                raise ValueError(f"{each.name} is above 0, got {value}")
            elif isinstance(value, int | float) and not value >= 0:
                raise ValueError(f"{each.name} is from 0 on, got {value}")
            elif value == math.inf:
                raise ValueError(f"{each.name} is a finite number, got {value}")
        # this raises where the settings of its method make no sense together
        if not self.total_epochs <= _MOST_EPOCHS:
            raise ValueError(f"a run takes at most {_MOST_EPOCHS:,} epochs: shorten epochs, or epochs_scale")

    @cached_property
    def hash(self) -> str:
        """The name of its folder: fields at their defaults take no part, so that new ones rename nothing.

        >>> Run().hash
        '44136fa355b3'
        """
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        for each in fields(self):
            if each.name in changed and each.type in (float, float | None):
                changed[each.name] = float(changed[each.name])  # 1 and 1.0 are equal, and the same run
        return hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def shortened(self) -> bool:
        """Whether it is shorter than it says."""
        return self.epochs_scale != 1 or self.steps is not None

    def to_dict(self) -> dict[str, Any]:
        """Its fields, for ``config.json``; ``Run(**run.to_dict())`` is the run again."""
        return {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if not (f.metadata.get("later") and getattr(self, f.name) == f.default)
        }

    def phases(self) -> list[Phase]:
        """What happens, in order."""
        method = METHODS[self.method]
        phases = method.phases(**{name: getattr(self, name) for name in method.fields})
        if self.extra_epochs:
            phases.append(Phase("extra", self.extra_epochs))
        # at least one epoch, but of a removal alone, which has none
        return [replace(p, epochs=max(round(p.epochs * self.epochs_scale), min(p.epochs, 1))) for p in phases]

    @property
    def total_epochs(self) -> int:
        """Of all its phases, fine-tuning included."""
        return sum(phase.epochs for phase in self.phases())

    @property
    def network(self) -> str:
        """The network and its width, where that is chosen."""
        return self.model if self.width is None else f"{self.model}-{self.width}"

    def __str__(self) -> str:
        """In a line: what it is, and what sets it apart."""
        parts = [self.network, "on", f"{self.data}:", self.method]
        if self.method != "dense":
            unit = self.of if self.structure == "channels" else "weights"
            whole = self.sparsity >= 1 - self.n / self.m - 1e-3  # as NM sees it
            groups = f" as {self.n}:{self.m}" if whole else f", at most {self.m - self.n} of every {self.m},"
            sizes = {"blocks": f" in tiles of {self.rows} x {self.columns}", "nm": groups}
            parts.append(f"{100 * self.sparsity:g} % of {unit}{sizes.get(self.structure, '')}")
        if "a_min" in METHODS[self.method].options:
            parts.append(f"({self.a_min:g} to {self.a_max:g})")
        parts.append(f"seed {self.seed}")
        return " ".join(parts) + (", shortened" if self.shortened else "")


def check_used(run: Run, chosen: Iterable[str]) -> None:
    """Raise where a field that somebody chose says nothing about a run of this structure and method."""
    for name in chosen:
        structures = [structure for structure, own in _OWN_FIELDS.items() if name in own]
        methods = [method.name for method in METHODS.values() if name in method.options]
        for kind, accepted in (("structure", structures), ("method", methods)):
            if accepted and getattr(run, kind) not in accepted:
                option, value = f"--{name.replace('_', '-')}", getattr(run, kind)
                raise ValueError(
                    f"{option} does nothing with --{kind} {value}: leave it out, or pass --{kind} "
                    f"{' or '.join(accepted)}"
                )


_OWN_FIELDS = {
    "blocks": ("rows", "columns"),
    "nm": ("n", "m"),
    "channels": ("min_channels", "of", "time_batch", "engine", "multiple_of", "couple"),
}
"""The fields that only one structure has."""

DEFAULTS = {each.name: each.default for each in fields(Run)}
"""What a field is where a record does not name it."""

_MOST_EPOCHS = 10**9
_POSITIVE = (
    *("width", "rows", "columns", "n", "m", "epochs", "batch_size", "evaluate_every", "epochs_scale", "lr"),
    *("steps", "time_batch"),
)
