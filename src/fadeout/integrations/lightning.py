"""Lightning: ``Trainer(callbacks=[Fadeout(sparsity=0.9)])``, with ``lightning`` or ``pytorch_lightning``."""

import importlib
import math
import sys
import warnings
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from fadeout.compaction.compact import compact as compacted
from fadeout.integrations.common import CompactingAdapter, needs
from fadeout.torch_bridge.sharding import whole_state

# The two packages are the same; that which the user has imported is taken, or else that which is there.
_OLD = "pytorch_lightning" in sys.modules or find_spec("lightning") is None
needs("lightning", "pytorch-lightning" if _OLD and find_spec("pytorch_lightning") else "lightning", "2.2")
_lightning: Any = importlib.import_module("pytorch_lightning" if _OLD else "lightning.pytorch")


class Fadeout(CompactingAdapter, _lightning.Callback):
    """Prune the network while a Trainer trains it; it is as sparse as asked for when ``fit`` is over.

    The steps are those that the Trainer will take, whatever it accumulates, clips or casts. The pruner's
    state is part of every checkpoint, and ``fit(..., ckpt_path=...)`` goes on bit for bit. Removal comes at
    the end of ``fit``, where it changes nothing; averaged weights that a later callback puts there
    (``WeightAveraging``) get the masks too. Where training ends before the fade is complete (early stopping),
    a warning says so, and nothing is removed. A further ``fit`` keeps the zeros; another network
    is pruned anew.

    Logged, for the progress bar and every logger: ``fadeout/sparsity`` (targeted now) and ``fadeout/factor``
    after each step, ``fadeout/fade`` after each epoch. A ``ModelCheckpoint`` may call a network best that is
    not sparse yet: ``ModelCheckpoint(monitor="fadeout/val_loss")`` counts ``val_loss`` only once removal
    would change nothing.

    Args:
        sparsity: the fraction to remove; the structure may say it, as ``NM(2, 4)`` does.
        steps: only for manual optimization, where the Trainer cannot know: how often all optimizers step.
        compact: leave the smaller network in ``compacted``. The example comes from the structure, or from the
            module's ``example_input_array``.
        method: what makes the pruner, such as :class:`fadeout.methods.GradualMagnitudePruning`, or, for a
            dense run, :class:`fadeout.NoPruning`.
        arguments: for the pruner: ``structure``, ``criterion``, ``fade``, ``prunable``.

    >>> import lightning.pytorch as pl
    >>> callback = Fadeout(sparsity=0.9)
    >>> trainer = pl.Trainer(callbacks=[callback], max_epochs=100)  # doctest: +SKIP
    """

    _decided_by = "max_epochs, max_steps, batches and accumulation"
    _state: dict[str, Any] | None = None  # of a checkpoint, read before there are optimizers

    # Steps --------------------------------------------------------------------------------------

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        model, optimizers = trainer.strategy.model, trainer.optimizers
        if self._hold(model, optimizers):
            return
        self.compacted = None
        if self.compact:
            self._input(pl_module)
        self._warn_of_checkpoints(trainer)
        planned = self._planned(trainer, pl_module)
        self._begin(model, optimizers, planned, self._state, trainer.global_step)
        self._state = None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        if self.pruner is not None and self.masks is None:
            figures = {
                "fadeout/sparsity": self.pruner.sparsity_now,
                "fadeout/factor": self.pruner.factor_now,
            }
            pl_module.log_dict(figures, prog_bar=True)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self.pruner is not None and self.masks is None:
            pl_module.log("fadeout/fade", self.pruner.fade, prog_bar=True)
            self._count_metrics(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self.pruner is not None and not trainer.sanity_checking:
            self._count_metrics(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._end()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if self.masks is not None:
            self.masks.apply(pl_module)  # once more, for a callback that has put averaged weights there
            if self.compact:
                self.compacted = compacted(pl_module, self._input(pl_module))

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.pruner is not None:
            self.pruner.detach()  # a new fit makes a new one

    # State --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        state = self._state if self.pruner is None else self.pruner.state_dict()
        # the first process writes it for all, and would write its own shards alone
        return {} if state is None else {"pruner": whole_state(state)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state = state_dict["pruner"]

    # Inside -------------------------------------------------------------------------------------

    def _planned(self, trainer: Any, pl_module: Any) -> float:
        planned = trainer.estimated_stepping_batches
        if pl_module.automatic_optimization:
            return planned
        # the module steps as it likes; the Trainer's max_steps count the steps of each optimizer
        several = len(trainer.optimizers) > 1 and trainer.max_steps != -1
        return math.inf if self.steps is not None or several else planned

    def _input(self, pl_module: Any) -> Any:
        example = self._example(getattr(pl_module, "example_input_array", None))
        if example is None:
            raise ValueError(
                "compact=True needs an example of the network's input: set self.example_input_array in the "
                "LightningModule, or pass structure=fadeout.Channels(example_input)"
            )
        return example

    def _warn_of_checkpoints(self, trainer: Any) -> None:
        for callback in trainer.checkpoint_callbacks:
            monitor = getattr(callback, "monitor", None)
            if monitor is not None and not monitor.startswith("fadeout/"):
                warnings.warn(
                    f"ModelCheckpoint(monitor={monitor!r}) may call a network best that is not sparse yet: "
                    f"pass monitor='fadeout/{monitor}', which counts only once the fade is complete",
                    stacklevel=2,
                )

    def _count_metrics(self, trainer: Any) -> None:
        """Give checkpoints the metrics that they monitor, and NaN, which is never best, before it counts."""
        monitors = {getattr(callback, "monitor", None) or "" for callback in trainer.checkpoint_callbacks}
        wanted = [monitor for monitor in monitors if monitor.startswith("fadeout/")]
        if not wanted:
            return
        assert self.pruner is not None
        counts, metrics = self.masks is not None or self.pruner.complete, trainer.callback_metrics
        for monitor in wanted:
            value = metrics.get(monitor.removeprefix("fadeout/"))
            if isinstance(value, Tensor):
                metrics[monitor] = value.clone() if counts else torch.full_like(value, math.nan)
