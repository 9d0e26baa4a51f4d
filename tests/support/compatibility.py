"""Cases that files of an older version are made of, and read with: only names that users may rely on.

``make_fixtures.py`` runs them with the old version, ``test_compatibility.py`` with the one in the tree.
"""

import hashlib
import math
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fadeout
from fadeout import Channels, Decay, Progressive, SelectiveWeightDecay, criteria, schedules
from fadeout.experiments.execute import Stopped, execute
from fadeout.experiments.run import Run
from fadeout.methods import GradualMagnitudePruning
from fadeout.methods.slimming import Slimming

FIXTURES = Path(__file__).parents[1] / "fixtures"


def fixed(*shape: int, first: int = 0) -> Tensor:
    """Numbers between -1 and 1 that need no random generator."""
    numbers = torch.arange(first, first + math.prod(shape))
    return ((numbers * 7919 % 2003).float() / 1001.5 - 1).view(*shape)


# Pruners, in the middle of a training ---------------------------------------------------------------------


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 5))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 7, 3, bias=False),
        nn.BatchNorm2d(7),
        nn.ReLU(),
        nn.Conv2d(7, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=1e-2)


def swd(**arguments: Any) -> Callable[..., Any]:
    return lambda model, optimizer, steps: SelectiveWeightDecay(
        model, optimizer, steps=steps, **{"sparsity": 0.8, "fade": Progressive(), **arguments}
    )


def gmp(**arguments: Any) -> Callable[..., Any]:
    return lambda model, optimizer, steps: GradualMagnitudePruning(
        model, optimizer, sparsity=0.8, steps=steps, **arguments
    )


def channels(**arguments: Any) -> Channels:
    return Channels(torch.zeros(1, 2, 6, 6), **{"by": "scale", **arguments})


GROWING = schedules.exponential(1.0, 1e3)
BFLOAT = torch.bfloat16

# name -> network, type of its weights, optimizer, pruner, the step at which its state is saved, steps in all
PRUNERS: dict[str, tuple[Any, ...]] = {
    "progressive": (layers, torch.float32, sgd, swd(), 15, 30),
    "progressive-schedule": (
        *(layers, torch.float64, adam),
        *(swd(sparsity=schedules.cubic(0.9, window=(0.2, 0.6))), 15, 30),
    ),
    "decay-gradient": (layers, torch.float32, sgd, swd(fade=Decay(GROWING, weight_decay=1e-3)), 15, 30),
    "decay-implicit": (layers, torch.float32, adam, swd(fade=Decay(GROWING, mode="implicit")), 15, 30),
    "decay-smooth-l1": (
        *(layers, torch.float32, sgd),
        *(swd(fade=Decay(GROWING, mode="implicit", penalty="smooth_l1")), 15, 30),
    ),
    "bfloat16-progressive": (layers, BFLOAT, sgd, swd(), 71, 600),
    "bfloat16-implicit": (layers, BFLOAT, sgd, swd(fade=Decay(50.0, mode="implicit")), 21, 40),
    "taylor-average": (
        layers,
        torch.float32,
        sgd,
        swd(criterion=criteria.moving_average(criteria.taylor)),
        15,
        30,
    ),
    "lamp": (layers, torch.float32, adam, swd(criterion=criteria.lamp), 15, 30),
    "channels": (convolutions, torch.float32, sgd, swd(structure=channels(), sparsity=0.5), 15, 30),
    "channels-norm": (
        *(convolutions, torch.float32, sgd),
        *(swd(structure=channels(by="norm", filters=True), sparsity=0.5, fade=Decay(GROWING)), 15, 30),
    ),
    "gmp": (layers, torch.float32, sgd, gmp(), 15, 30),
    "slimming": (
        *(convolutions, torch.float32, sgd),
        *(lambda m, o, steps: Slimming(m, o, strength=0.1, steps=steps, structure=channels()), 15, 30),
    ),
}


class Training:
    """A training whose gradients come from sums and products alone: the same on every processor."""

    def __init__(self, name: str):
        build, dtype, optimizer, pruner, self.saved, self.steps = PRUNERS[name]
        self.model = build().to(dtype)
        with torch.no_grad():
            for number, parameter in enumerate(self.model.parameters()):
                parameter.copy_(fixed(*parameter.shape, first=100 * number))
        self.optimizer = optimizer(self.model)
        self.pruner = pruner(self.model, self.optimizer, self.steps)

    def train(self, start: int, stop: int) -> None:
        for step in range(start, stop):
            for number, parameter in enumerate(self.model.parameters()):
                noise = fixed(*parameter.shape, first=37 * step + number).to(parameter.dtype)
                parameter.grad = (parameter.detach() + noise) / 4
            self.optimizer.step()

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "pruner": self.pruner.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        for part, value in state.items():
            getattr(self, part).load_state_dict(value)

    def end(self) -> dict[str, Any]:
        """The weights after the last step, what removal keeps, and the weights after it."""
        trained = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        with warnings.catch_warnings():  # after so few steps the fade need not be complete
            warnings.simplefilter("ignore", UserWarning)
            masks = dict(self.pruner.remove())
        return {"trained": trained, "masks": masks, "removed": dict(self.model.named_parameters())}


# Networks in files ----------------------------------------------------------------------------------------


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.Linear(6, 6), nn.Linear(6, 3)
        self.attention = nn.MultiheadAttention(6, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        return self.after(self.attention(x, x, x, need_weights=False)[0])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(12, 12), nn.Linear(12, 12)
        self.other.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.one(x).relu())


class Residual(nn.Module):
    """A block whose two sides may keep different channels."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU())
        self.block = nn.Sequential(
            *(nn.Conv2d(6, 7, 1, bias=False), nn.BatchNorm2d(7), nn.ReLU()),
            *(nn.Conv2d(7, 8, 1, bias=False), nn.BatchNorm2d(8)),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(6, 8, 1, bias=False), nn.BatchNorm2d(8))
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.norm(self.block(x) + self.shortcut(x)).relu().mean((2, 3)))


IMAGES, VECTORS = (2, 3, 8, 8), (4, 12)

# name -> the user's constructor, the shape of its input
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "plain": (lambda: nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 4)), VECTORS),
    "sparse": (lambda: nn.Sequential(nn.Linear(12, 300), nn.ReLU(), nn.Linear(300, 4)), VECTORS),
    "tied": (Tied, VECTORS),
    "bfloat16": (lambda: nn.Linear(12, 15, 30).bfloat16(), VECTORS),
    "compact": (Residual, IMAGES),
    "compact-twice": (Residual, IMAGES),
    "for-inference": (Residual, IMAGES),
    "attention": (Attending, (2, 5, 6)),
    "vit": (lambda: fadeout.models.vit(num_classes=3, image_size=8, dim=12, depth=1), IMAGES),
}


def given(name: str) -> Tensor:
    """The input whose output is stored beside a network's file."""
    return fixed(*NETWORKS[name][1]).to(BFLOAT if name == "bfloat16" else torch.float32)


def output(name: str, model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model.eval()(given(name))


# Runs -----------------------------------------------------------------------------------------------------

# name -> the run, the step after which it was stopped
RUNS: dict[str, tuple[Run, int]] = {  # what was auto in version 0.1 is called progressive now
    "auto": (Run(method="progressive", epochs=4, steps=5), 9),
    "han": (Run(method="han", epochs=2, rounds=2, fine_tune=2, last_fine_tune=1, steps=5), 13),
    "channels": (Run(method="progressive", structure="channels", sparsity=0.5, epochs=4, steps=5), 8),
}


def digest(folder: Path) -> str:
    """Of the weights in a run's checkpoint."""
    state = torch.load(folder / "checkpoint", weights_only=True)["model"]
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in state.values())).hexdigest()


def stop_after(run: Run, step: int, results: Path) -> None:
    """Begin a run, and stop it after a step, counted from 1."""

    def watch(now: dict[str, Any]) -> None:
        if now["step"] == step:
            signal.raise_signal(signal.SIGTERM)

    try:
        execute(run, results, checkpoint_every=1e9, watch=watch)
    except Stopped:
        return
    raise AssertionError(f"the run was over before step {step}")
