"""Ultralytics: ``Fadeout(sparsity=0.9).add_to(yolo)``, then ``yolo.train(...)``."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fadeout._files import write_atomically
from fadeout.compaction.compact import compact as compacted
from fadeout.integrations.common import CompactingAdapter, needs
from fadeout.structures.channels import Channels

needs("ultralytics", "ultralytics", "8.3")

_FILE = "fadeout.pt"  # beside last.pt


class Fadeout(CompactingAdapter):
    """Prune a YOLO network while it trains; what ``yolo.train()`` leaves is as sparse as asked for.

    Ultralytics validates and saves an average of the weights (EMA), which keeps what has faded: once the fade
    is complete the average gets the masks, before every validation, and only then a network counts as best.
    So ``best.pt`` and ``last.pt`` have exactly the zeros of their epoch. Where training ends before that, a
    warning says so, and nothing is removed.

    Its checkpoints have the average alone, in half precision, and a resumed training goes on from that.
    Beside ``last.pt`` the file ``fadeout.pt`` keeps weights, optimizer and average as they are, and the state
    of the pruner: with it ``train(resume=True)`` goes on with the same bits. Training is in one process:
    those that Ultralytics starts for several devices know nothing of callbacks.

    Args:
        sparsity: the fraction to remove; the structure may say it, as ``NM(2, 4)`` does.
        steps: only checked against the number of optimizer steps that follows from the settings.
        compact: leave the smaller network in ``compacted``, cut out of the average, for
            :func:`fadeout.export.onnx` or :func:`fadeout.save`. The example comes from the structure, or is
            an image of the size trained with.
        method: what makes the pruner, such as :class:`fadeout.methods.GradualMagnitudePruning`, or, for a
            dense run, :class:`fadeout.NoPruning`.
        arguments: for the pruner: ``structure``, ``criterion``, ``fade``, ``prunable``.

    >>> from ultralytics import YOLO
    >>> yolo = YOLO("yolo11n.yaml")  # doctest: +SKIP
    >>> fading = Fadeout(sparsity=0.9).add_to(yolo)  # doctest: +SKIP
    >>> yolo.train(data="coco8.yaml", epochs=100)  # doctest: +SKIP
    """

    _decided_by = "epochs, batch, nbs and warmup_epochs"
    _counts = False  # whether the last validation was that of a network as sparse as it will be

    def add_to(self, yolo: Any) -> "Fadeout":
        """Register the callbacks with a ``YOLO``, as ``yolo.add_callback`` does for each of them."""
        for event in ("on_train_start", "on_train_epoch_end", "on_model_save", "on_train_end"):
            yolo.add_callback(event, getattr(self, event))
        return self

    def on_train_start(self, trainer: Any) -> None:
        """Build the pruner; where a training is resumed, go on exactly where it was."""
        if trainer.args.time:
            raise ValueError(
                "time= ends a training after hours, and a fade needs a number of steps: use epochs="
            )
        path, saved = Path(trainer.wdir, _FILE), None
        if trainer.resume:
            saved = _read(path, trainer.start_epoch)
            trainer.model.load_state_dict(saved["model"])
            trainer.ema.ema.load_state_dict(saved["ema"])
            trainer.optimizer.load_state_dict(saved["optimizer"])
            if saved["epoch"] + 1 < trainer.start_epoch:  # killed between the writing of last.pt and of ours
                trainer.start_epoch, trainer.scheduler.last_epoch = saved["epoch"] + 1, saved["epoch"]
                trainer.ema.updates, trainer.best_fitness = saved["updates"], saved["best_fitness"]
                trainer.stopper.__dict__.update(saved["stopper"])
        channels = isinstance(self.arguments.get("structure"), Channels)  # they look at what is trained
        defaults: dict[str, Any] = {} if channels else {"prunable": _trained}
        state = None if saved is None else saved["pruner"]
        self._begin(trainer.model, trainer.optimizer, count_steps(trainer), state, **defaults)
        self._counts = saved is not None and saved["counts"]

    def on_train_epoch_end(self, trainer: Any) -> None:
        """Before a validation: give the average the masks, and forget what was best before that."""
        assert self.pruner is not None
        if not self._counts:
            trainer.best_fitness = None
            trainer.stopper.best_fitness, trainer.stopper.best_epoch = 0.0, trainer.epoch
        self._counts = self.pruner.complete
        if self._counts:
            self.pruner.masks().apply(trainer.ema.ema)

    def on_model_save(self, trainer: Any) -> None:
        """Beside the checkpoint, write what it leaves out."""
        assert self.pruner is not None
        parts = {"pruner": self.pruner, "model": trainer.model, "ema": trainer.ema.ema}
        state = {name: part.state_dict() for name, part in parts.items()}
        state |= {"optimizer": trainer.optimizer.state_dict(), "epoch": trainer.epoch, "counts": self._counts}
        stopper = {name: getattr(trainer.stopper, name) for name in ("best_fitness", "best_epoch")}
        best = None if trainer.best_fitness is None else float(trainer.best_fitness)
        state |= {"updates": trainer.ema.updates, "best_fitness": best, "stopper": stopper}
        write_atomically(Path(trainer.wdir, _FILE), lambda path: torch.save(state, path))

    def on_train_end(self, trainer: Any) -> None:
        """Remove what has faded."""
        self._end()
        if self.masks is not None:
            self.masks.apply(trainer.ema.ema)
            if self.compact:
                image = torch.zeros(1, 3, trainer.args.imgsz, trainer.args.imgsz, device=trainer.device)
                self.compacted = compacted(trainer.ema.ema.float().eval(), self._example(image))


def _trained(name: str, parameter: nn.Parameter) -> bool:
    """The default choice, without what Ultralytics always freezes."""
    return parameter.dim() >= 2 and parameter.requires_grad


def _read(path: str | os.PathLike[str], start: int) -> dict[str, Any]:
    """What :meth:`Fadeout.on_model_save` wrote, if it belongs to the checkpoint that is resumed."""
    if not Path(path).exists():
        raise ValueError(f"{path} is missing: the training that is resumed was begun without Fadeout")
    saved = torch.load(path, map_location="cpu", weights_only=True)
    if saved["epoch"] + 1 not in (start - 1, start):
        raise ValueError(
            f"{path} is of epoch {saved['epoch'] + 1}, and last.pt of epoch {start}: they belong together"
        )
    return saved


def count_steps(trainer: Any) -> int:
    """The optimizer steps of a whole training, from Ultralytics' rule of when gradients have accumulated."""
    batches, last, steps = len(trainer.train_loader), -1, 0
    warm_epochs = min(trainer.args.warmup_epochs, max(trainer.epochs - 1, 0))
    warm = round(warm_epochs * batches)
    for number in range(batches * trainer.epochs):
        share = np.interp(number, [0, warm], [1, trainer.accumulate]) if warm else trainer.accumulate
        if number - last >= max(1, round(float(share))):
            steps, last = steps + 1, number
    return steps
