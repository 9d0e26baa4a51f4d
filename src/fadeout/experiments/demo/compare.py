"""What the demo trains: one network from one seed, by every method and to every target."""

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fadeout.experiments import training
from fadeout.experiments.data import Dataset
from fadeout.experiments.training import Step, in_thirds
from fadeout.methods import NoPruning, SelectiveWeightDecay, iterative, one_shot
from fadeout.models import smallcnn


@dataclass(frozen=True)
class Settings:
    """How the demo trains.

    Attributes:
        learning_rate: for the first third of a training, then a tenth of it, then a hundredth.
        round_epochs, round_rate: how long and at which learning rate iterative pruning fine-tunes after each
            of its rounds. Han et al. take a tenth of the first learning rate.
        shown: the target whose fading weights are recorded.
        shrunk: the fractions of the parameters that are cut out in the second part.
    """

    epochs: int = 60
    batch_size: int = 32
    learning_rate: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    targets: tuple[float, ...] = (0.9, 0.95, 0.98, 0.99)
    rounds: int = 5
    round_epochs: int = 12
    round_rate: float = 0.005
    shown: float = 0.95
    shrunk: tuple[float, ...] = (0.75, 0.9)

    @property
    def total_epochs(self) -> int:
        """Of the whole comparison, and of the second part."""
        compared = 1 + len(self.targets), len(self.targets) * self.rounds
        return (compared[0] + 1 + len(self.shrunk)) * self.epochs + compared[1] * self.round_epochs


@dataclass(frozen=True)
class Outcome:
    """What a method came to at a target.

    ``before`` and ``after`` are the test accuracies, in percent, on both sides of the removal, or of the
    last one; ``final`` is that of the finished network, which differs where fine-tuning follows.
    """

    method: str
    sparsity: float
    before: float
    after: float
    final: float
    left: int
    total: int
    epochs: int
    seconds: float = 0.0


class Display(Protocol):
    """Who is told how it goes."""

    def begin(self, method: str, sparsity: float, epochs: int, steps: int) -> None:
        """A training of so many steps begins; the number of its last epoch is ``epochs``."""

    def step(self, figures: dict[str, Any]) -> None:
        """A step was taken; the last one of each epoch also brings the accuracy and the fade."""

    def end(self, outcome: Outcome) -> None:
        """A method has come to its target."""


class Comparison:
    """Run every method. What comes of it is in ``outcomes``, the fading weights are in ``snapshots``.

    Args:
        data: what to train on and to test with.
        settings: how to train.
        seed: of the initialisation and the order of the data, the same for all methods.
        display: who is told how it goes.
    """

    def __init__(self, data: Dataset, settings: Settings, seed: int, display: Display):
        self.data, self.settings, self.seed, self.display = data, settings, seed, display
        self.outcomes: list[Outcome] = []
        self.snapshots: list[Tensor] = []  # all prunable weights: at the start, then after each epoch
        self.stays = torch.empty(0)  # True for those of them that are left in the end
        self._dense = self.fresh()

    def run(self) -> None:
        """The dense network first: the methods that prune after training start from it."""
        for method, targets in {
            self.dense: (0.0,),
            self.one_shot: self.settings.targets,
            self.iterative: self.settings.targets,
            self.fadeout: self.settings.targets,
        }.items():
            for sparsity in targets:
                start = time.perf_counter()
                outcome = method(sparsity)
                outcome = replace(outcome, seconds=round(time.perf_counter() - start, 2))
                self.outcomes.append(outcome)
                self.display.end(outcome)

    def dense(self, sparsity: float) -> Outcome:
        """No pruning."""
        epochs = self.settings.epochs
        model, optimizer = self._dense
        self.begin("dense", sparsity, epochs)
        self.train(model, optimizer, epochs, scheduler=in_thirds(optimizer, self.steps(epochs)))
        reached = self.accuracy(model)
        total = sum(p.numel() for p in model.parameters() if p.dim() >= 2)
        return Outcome("dense", sparsity, reached, reached, reached, total, total, epochs)

    def one_shot(self, sparsity: float) -> Outcome:
        """All at once, after training."""
        model, _ = copy.deepcopy(self._dense)
        before = self.accuracy(model)
        masks = one_shot(model, sparsity)
        after = self.accuracy(model)
        epochs = self.settings.epochs
        return Outcome("one-shot", sparsity, before, after, after, masks.left, masks.total, epochs)

    def iterative(self, sparsity: float) -> Outcome:
        """After training, in rounds with fine-tuning (Han et al.)."""
        s = self.settings
        epochs = s.epochs + s.rounds * s.round_epochs
        model, optimizer = copy.deepcopy(self._dense)  # one copy of both: the optimizer holds the new model
        for group in optimizer.param_groups:
            group["lr"] = s.round_rate
        before = after = final = self.accuracy(model)
        self.begin("iterative", sparsity, epochs, first_epoch=s.epochs)

        def fine_tune(number: int) -> None:
            nonlocal before, after, final
            before, after = final, self.accuracy(model)
            first = s.epochs + (number - 1) * s.round_epochs
            now = sparsity * number / s.rounds
            self.train(model, optimizer, s.round_epochs, first_epoch=first, sparsity=now, factor=0.0)
            final = self.accuracy(model)

        masks = iterative(model, optimizer, fine_tune, sparsity=sparsity, rounds=s.rounds)
        return Outcome("iterative", sparsity, before, after, final, masks.left, masks.total, epochs)

    def fadeout(self, sparsity: float) -> Outcome:
        """While training, in the same loop; then removal, and nothing after it."""
        epochs = self.settings.epochs
        model, optimizer = self.fresh()
        steps = self.steps(epochs)
        pruner = SelectiveWeightDecay(model, optimizer, sparsity=sparsity, steps=steps)
        self._snapshot(pruner)
        self.begin("fadeout", sparsity, epochs)
        self.train(model, optimizer, epochs, scheduler=in_thirds(optimizer, steps), pruner=pruner)
        before = self.accuracy(model)
        masks = pruner.remove()
        after = self.accuracy(model)
        if sparsity == self.settings.shown:
            self.stays = _flat(masks)
        return Outcome("fadeout", sparsity, before, after, after, masks.left, masks.total, epochs)

    def fresh(self, build: Callable[[], nn.Module] = smallcnn) -> tuple[nn.Module, Optimizer]:
        """A network as the seed initialises it, and its optimizer."""
        s = self.settings
        torch.manual_seed(self.seed)
        model = build()
        optimizer = SGD(
            model.parameters(), lr=s.learning_rate, momentum=s.momentum, weight_decay=s.weight_decay
        )
        return model, optimizer

    def begin(self, method: str, sparsity: float, epochs: int, first_epoch: int = 0) -> None:
        """Tell the display that a training begins."""
        self.display.begin(method, sparsity, epochs, self.steps(epochs - first_epoch))

    def steps(self, epochs: int) -> int:
        """Of so many epochs."""
        return epochs * self.data.steps(self.settings.batch_size)

    def train(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        epochs: int,
        *,
        first_epoch: int = 0,
        scheduler: LRScheduler | None = None,
        pruner: NoPruning | SelectiveWeightDecay | None = None,
        **figures: float,
    ) -> None:
        """Train, and show ``figures`` in place of the pruner's own."""
        s, pruner = self.settings, pruner or NoPruning()
        last = self.data.steps(s.batch_size) - 1

        def on_step(step: Step) -> None:
            now = {
                "epoch": step.epoch,
                "loss": step.loss.item(),
                "sparsity": pruner.sparsity_now,
                "factor": pruner.factor_now,
                **figures,
            }
            if step.step == last:
                now |= {"accuracy": self.accuracy(model), "fade": pruner.fade}
                self._snapshot(pruner)
            self.display.step(now)

        training.train(
            model,
            optimizer,
            self.data,
            epochs=epochs,
            batch_size=s.batch_size,
            seed=self.seed,
            first_epoch=first_epoch,
            scheduler=scheduler,
            on_step=on_step,
        )

    def _snapshot(self, pruner: NoPruning | SelectiveWeightDecay) -> None:
        if isinstance(pruner, SelectiveWeightDecay) and pruner.sparsity == self.settings.shown:
            self.snapshots.append(_flat(pruner.parameters))

    def accuracy(self, model: nn.Module) -> float:
        """On the test pictures, in percent."""
        return training.accuracy(model, self.data.test_x, self.data.test_y)


def _flat(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors.values()])
