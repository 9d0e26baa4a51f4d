"""Hugging Face: ``Trainer(callbacks=[FadeoutCallback(sparsity=0.9)])``, and files of compacted networks."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from fadeout.integrations.common import Adapter, needs
from fadeout.storage import network_file
from fadeout.structures.elements import Elements
from fadeout.torch_bridge.optimizers import unwrap_optimizer
from fadeout.torch_bridge.parameters import Prunable, named

needs("transformers", "transformers", "4.45")
needs("transformers", "accelerate", "0.34")
from transformers import TrainerCallback  # noqa: E402  pyright: ignore[reportMissingImports]

_KEY = "fadeout"  # in the first parameter group, as the optimizer's file has it


class FadeoutCallback(Adapter, TrainerCallback):
    """Prune the network while a ``Trainer`` trains it; it is as sparse as asked for when ``train()`` is over.

    The steps are those that the Trainer will take. The pruner's state is saved with the optimizer's in each
    checkpoint folder, wherever that is moved to, and ``train(resume_from_checkpoint=...)`` goes on bit for
    bit. Removal comes at the end, where it changes nothing, so that ``trainer.save_model()`` and
    ``model.save_pretrained()`` then write the pruned network; where training ends before the fade is
    complete, a warning says so, and nothing is removed. With ``load_best_model_at_end`` only checkpoints
    count from which removal would change nothing. A further ``train()`` keeps the zeros, and a new network
    (``model_init``, a search of hyperparameters) is pruned anew.

    Logged: ``fadeout_sparsity`` (targeted now), ``fadeout_factor`` and ``fadeout_fade``. They are in
    ``state.log_history`` and in what is printed. The reporters of ``report_to`` (TensorBoard, Weights &
    Biases, MLflow) come before the callbacks that a ``Trainer`` is given: with
    ``FadeoutCallback(...).add_to(trainer)`` instead of ``callbacks=`` they have these figures, too.

    Args:
        sparsity: the fraction to remove, of the weights that take part; the structure may say it, as
            ``NM(2, 4)`` does.
        steps: only checked against the Trainer's own number.
        method: what makes the pruner, such as :class:`fadeout.methods.GradualMagnitudePruning`, or, for a
            dense run, :class:`fadeout.NoPruning`.
        arguments: for the pruner: ``structure``, ``criterion``, ``fade``, ``prunable``. By default weights of
            two or more dimensions take part, but neither embeddings nor the output head.

    >>> callback = FadeoutCallback(sparsity=0.9)
    >>> callback.masks is None  # before trainer.train()
    True
    """

    _decided_by = "num_train_epochs, max_steps, batches and accumulation"
    _why_stateless = "it was trained without it, or with save_only_model=True"
    _counts = True  # whether the last evaluation was that of a network as sparse as it will be
    _saving: Any = None

    def add_to(self, trainer: Any) -> "FadeoutCallback":
        """Register it with a ``Trainer``, before its reporters: they get what it logs."""
        trainer.callback_handler.callbacks.insert(0, self)
        return self

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model, optimizer = kwargs["model"], unwrap_optimizer(kwargs["optimizer"])
        saved = optimizer.param_groups[0].pop(_KEY, None)
        if self._hold(model, optimizer):
            return
        if args.load_best_model_at_end and args.save_only_model:
            raise ValueError(
                "load_best_model_at_end needs the state of the pruner at that checkpoint, which "
                "save_only_model=True leaves out: choose one of them"
            )
        self._stop_saving()  # of a training that was stopped
        weights = isinstance(self.arguments.get("structure"), Elements | None)
        defaults: dict[str, Any] = {"prunable": body(model)} if weights else {}
        self._begin(model, optimizer, state.max_steps, saved, state.global_step, **defaults)
        self._saving = optimizer.register_state_dict_post_hook(self._add_state)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.pruner is None or self.masks is not None or not logs or "loss" not in logs:
            return
        figures = {
            "fadeout_sparsity": self.pruner.sparsity_now,
            "fadeout_factor": self.pruner.factor_now,
            "fadeout_fade": self.pruner.fade,
        }
        logs.update(figures)
        state.log_history[-1].update(figures)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.pruner is not None:  # before the first step there may be no scores to tell by
            self._counts = self.masks is not None or (state.global_step > 0 and self.pruner.complete)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self._counts:  # no checkpoint from before the fade is complete is best
            state.best_metric = state.best_model_checkpoint = None
            state.best_global_step = None

    on_step_begin = on_save

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._held is None and self.pruner is not None:
            if args.load_best_model_at_end and state.best_model_checkpoint is not None:
                path = Path(state.best_model_checkpoint, "optimizer.pt")
                groups = torch.load(path, map_location="cpu", weights_only=True)["param_groups"]
                self.pruner.load_state_dict(groups[0][_KEY])  # the weights are those of that checkpoint, too
            self._stop_saving()
        self._end()

    def _stop_saving(self) -> None:
        if self._saving is not None:
            self._saving.remove()
            self._saving = None

    def _add_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        assert self.pruner is not None
        state["param_groups"][0][_KEY] = self.pruner.state_dict()


def body(model: nn.Module) -> Prunable:
    """What takes part by default: matrices and filters, but neither embeddings nor the output head.

    The head is what a model for a task has around its base (``model.base_model``).
    """
    base = getattr(model, "base_model", model)
    inside = {id(p) for name, p in base.named_parameters() if p.dim() >= 2 and "embed" not in name}
    inside -= {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    for find in ("get_input_embeddings", "get_output_embeddings"):
        module = getattr(model, find, lambda: None)()
        inside -= {id(p) for p in (module.parameters() if isinstance(module, nn.Module) else ())}
    names = frozenset(name for name, p in named(model).items() if id(p) in inside)  # the same on every rank
    return lambda name, parameter: name in names


def save(model: nn.Module, folder: str | os.PathLike[str], config: Any = None) -> None:
    """Write a compacted network, whose shapes ``from_pretrained`` does not know, with its config beside it.

    Args:
        model: what :func:`fadeout.compact` gave.
        folder: made if it is not there; gets ``config.json`` and ``fadeout.safetensors``.
        config: that of the whole network; by default ``model.config``.
    """
    config = getattr(model, "config", None) if config is None else config
    if config is None:
        raise ValueError("the compacted network has no config of its own: pass config=model.config")
    Path(folder).mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    network_file.save(model, Path(folder, "fadeout.safetensors"))


def load(folder: str | os.PathLike[str], build: Any, **arguments: Any) -> nn.Module:
    """Read what :func:`save` wrote.

    Args:
        folder: that was given to it.
        build: the class of the whole network, such as ``BertForSequenceClassification``.
        arguments: for :func:`fadeout.load`.
    """
    config = build.config_class.from_pretrained(folder)
    return network_file.load(Path(folder, "fadeout.safetensors"), lambda: build(config), **arguments)
