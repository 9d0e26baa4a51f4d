"""What a run is: its settings, the name of its folder, its phases."""

import hashlib
import inspect
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

import fadeout
from fadeout import models
from fadeout._checks import known
from fadeout.experiments import data
from fadeout.experiments.authors import AuthorsElements
from fadeout.experiments.recipes import METHODS, Phase
from fadeout.experiments.training import LEARNING_RATES
from fadeout.models.lenet import lenet5_authors
from fadeout.structures.channels import Channels
from fadeout.structures.elements import Elements

DATA: dict[str, Callable[..., Any]] = {
    name: getattr(data, name) for name in data.__all__ if inspect.isfunction(getattr(data, name))
}
MODELS: dict[str, Callable[..., nn.Module]] = {name: getattr(models, name) for name in models.__all__}


@dataclass(frozen=True)
class Run:
    """All that decides the outcome of a run. Two runs with equal fields are the same run.

    >>> run = Run(data="digits", model="smallcnn", method="auto", sparsity=0.9, epochs=2)
    >>> [phase.name for phase in replace(run, method="han").phases()]
    ['train', 'fine-tune 1', 'fine-tune 2', 'fine-tune 3', 'fine-tune 4', 'fine-tune 5']
    """

    data: str = "digits"
    """the data set"""
    model: str = "smallcnn"
    """the network"""
    width: int | None = None
    """feature maps of the network's first stage, or hidden units; by default the network's own"""
    method: str = "auto"
    """how it is pruned"""
    structure: Literal["elements", "channels"] = "elements"
    """single weights, or whole channels"""
    sparsity: float = 0.9
    """the fraction to remove: of the prunable weights, or with channels of all parameters"""
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
    """how the learning rate goes: thirds, constant, cosine or restarts"""

    a_min: float | None = None
    """swd: the strength at the start; by default the paper's for this network, data and structure"""
    a_max: float | None = None
    """swd: the strength at the end; by default the paper's"""
    mu: float | None = None
    """swd: the decay that the strength multiplies; by default the weight decay"""
    rounds: int = 5
    """han: removals"""
    fine_tune: int = 5
    """han: epochs after each removal but the last"""
    last_fine_tune: int = 15
    """han, liu: epochs after the last removal"""
    smooth_l1: float = 1e-4
    """liu, structured rewinding: the coefficient of the penalty on the scales"""
    soft: bool = False
    """also set the lowest weights to zero at the beginning of each epoch, free to grow again"""
    extra_epochs: int = 0
    """train on, without what is removed, after all else"""

    min_channels: int = 1
    """channels that each layer keeps; with 0 a layer may collapse, as in the paper"""
    preset: Literal["paper", "authors"] = "paper"
    """where the authors' code differs from their paper, which to follow"""
    validation: bool = False
    """test on a held-out part of the training data instead of the test data"""
    epochs_scale: float = 1.0
    """shorten all phases in proportion; results are marked"""
    steps: int | None = None
    """at most so many steps in an epoch, for a trial; results are marked"""
    compile: bool = False
    """run the network through torch.compile: worth it on a GPU, or for long runs"""
    evaluate_every: int = 1
    """epochs between two tests"""

    def __post_init__(self):
        known("data", self.data, DATA)
        known("model", self.model, MODELS)
        known("method", self.method, METHODS)
        known("learning_rates", self.learning_rates, LEARNING_RATES)
        known("structure", self.structure, ("elements", "channels"))
        known("optimizer", self.optimizer, ("sgd", "adam"))
        known("preset", self.preset, ("paper", "authors"))
        if not 0 < self.sparsity < 1:
            raise ValueError(f"sparsity is a fraction between 0 and 1, got {self.sparsity}")
        for name in _POSITIVE:
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ValueError(f"{name} is above 0, got {getattr(self, name)}")
        for name in _FROM_ZERO:
            if getattr(self, name) is not None and not getattr(self, name) >= 0:
                raise ValueError(f"{name} is from 0 on, got {getattr(self, name)}")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed is a whole number from 0 to 2**32 - 1, got {self.seed}")
        if self.method == "liu" and self.structure != "channels":
            raise ValueError("liu prunes whole channels: --structure channels")
        if self.method in ("swd", "growing_decay") and (self.a_min is None or self.a_max is None):
            raise ValueError(
                f"the paper names no strength for {self.model} on {self.data}, {self.structure}: pass "
                "--a-min and --a-max, or take the method auto, which needs none"
            )

    @property
    def hash(self) -> str:
        """The name of its folder: fields at their defaults take no part, so that new ones rename nothing.

        >>> Run().hash
        '44136fa355b3'
        """
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        for name in changed.keys() & _FRACTIONAL:
            changed[name] = float(changed[name])  # 1 and 1.0 are equal, and the same run
        return hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def shortened(self) -> bool:
        """Whether it is shorter than it says."""
        return self.epochs_scale != 1 or self.steps is not None

    def to_dict(self) -> dict[str, Any]:
        """All fields, for ``config.json``."""
        return asdict(self)

    def phases(self) -> list[Phase]:
        """What happens, in order."""
        recipe = METHODS[self.method]
        phases = recipe(**{name: getattr(self, name) for name in inspect.signature(recipe).parameters})
        if self.extra_epochs:
            phases.append(Phase("extra", self.extra_epochs))
        return [replace(phase, epochs=self._scaled(phase.epochs)) for phase in phases]

    def build_data(self, directory: Any = None) -> Any:
        """Load the data set."""
        load = DATA[self.data]
        loaded = load(directory) if inspect.signature(load).parameters else load()
        return loaded.validation() if self.validation else loaded

    def build_model(self, num_classes: int) -> nn.Module:
        """The network as it is initialised, which depends on the seed alone."""
        build = MODELS[self.model]
        if self.model == "lenet5" and self.preset == "authors":
            build = lenet5_authors
        wanted = {"num_classes": num_classes, "width": self.width, "norm": True}
        if self.data.startswith("imagenet"):
            wanted["stem"] = "imagenet"
        accepted = inspect.signature(build).parameters
        if self.width is not None and "width" not in accepted:
            raise ValueError(f"{self.model} has no width to choose, got {self.width}")
        torch.manual_seed(self.seed)
        return build(**{n: value for n, value in wanted.items() if n in accepted and value is not None})

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        """A new optimizer at the base learning rate."""
        if self.optimizer == "adam":
            return Adam(model.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        return SGD(model.parameters(), lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)

    def build_structure(self, example: Any) -> Elements | Channels:
        """What stands and falls together."""
        if self.structure == "channels":
            return Channels(example, min_channels=self.min_channels)
        return AuthorsElements() if self.preset == "authors" else fadeout.Elements()

    def _scaled(self, epochs: int) -> int:
        return max(1, round(epochs * self.epochs_scale)) if epochs else 0


_POSITIVE = ("width", "epochs", "batch_size", "rounds", "evaluate_every", "epochs_scale", "lr", "steps")
_FROM_ZERO = (
    *("momentum", "weight_decay", "a_min", "a_max", "mu", "smooth_l1"),
    *("fine_tune", "last_fine_tune", "extra_epochs", "min_channels"),
)
_FRACTIONAL = {f.name for f in fields(Run) if f.type in (float, float | None)}
