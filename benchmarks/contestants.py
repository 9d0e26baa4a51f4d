"""The tools that prune while a network trains, each used as its own documentation says.

A contestant makes a training step of a network and its optimizer; it raises ModuleNotFoundError where its
package is not installed.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
import trainings
from harness import at_step
from torch import nn
from torch.nn.utils import prune
from trainings import Training

import fadeout

SPARSITY = {"elements": 0.9, "channels": 0.5}
STEPS = 117_000  # of the training, of which half is over

Step = Callable[[], object]
Contestant = Callable[[Training], Step]


def plain(training: Training) -> Step:
    return _step(training)


def fadeout_with(training: Training, sparsity: float, **arguments: Any) -> Step:
    pruner = fadeout.SelectiveWeightDecay(
        training.model, training.optimizer, sparsity=sparsity, steps=STEPS, **arguments
    )
    at_step(pruner, STEPS // 2)
    return _step(training)


def latent(training: Training) -> Step:
    return fadeout_with(training, SPARSITY["elements"])


def elements_compiled(training: Training) -> Step:
    return _progressive(training, compile=True)


def elements_eager(training: Training) -> Step:
    return _progressive(training, compile=False)


def _progressive(training: Training, compile: bool) -> Step:
    structure, fade = fadeout.Elements(compile=compile), fadeout.Progressive()
    return fadeout_with(training, SPARSITY["elements"], structure=structure, fade=fade)


def channels(training: Training) -> Step:
    return fadeout_with(training, SPARSITY["channels"], structure=fadeout.Channels(training.example))


def masks_held(training: Training) -> Step:
    """torch.nn.utils.prune, once: the masks are multiplied in before each forward pass."""
    _prune_globally(training.model)
    return _step(training)


def masks_renewed(training: Training) -> Step:
    """The same, chosen anew before each step, so that a weight may come back."""
    _prune_globally(training.model)

    def renew() -> None:
        for module, name in _prunable(training.model):
            prune.remove(module, name)
        _prune_globally(training.model)

    step = _step(training)
    return lambda: (renew(), step())


def group_norm(training: Training) -> Step:
    """Torch-Pruning's group-norm regularizer, added to the gradients; its groups are found once an epoch."""
    import torch_pruning as tp  # pyright: ignore[reportMissingImports]

    return _regularized(training, tp.pruner.GroupNormPruner, tp.importance.GroupMagnitudeImportance(p=2))


def bn_scale(training: Training) -> Step:
    """Torch-Pruning's network slimming: a penalty on the batch-norm scales."""
    import torch_pruning as tp  # pyright: ignore[reportMissingImports]

    return _regularized(training, tp.pruner.BNScalePruner, tp.importance.BNScaleImportance())


def pat_lasso(training: Training) -> Step:
    """torchao's pruning-aware training, single weights."""
    return _pat(training, group_type="ElemGrouper", prox_type="ProxLasso")


def pat_group_lasso(training: Training) -> Step:
    """The same, whole filters."""
    return _pat(training, group_type="Dim0Grouper", prox_type="ProxGroupLasso")


def pat_constraint(training: Training) -> Step:
    """The same with a target: the lowest 90 % of all single weights are zero after each step."""
    return _pat(
        training,
        group_type="ElemGrouper",
        prox_type="GlobalMinSparsityConstraint",
        min_sparsity=SPARSITY["elements"],
    )


CONTESTANTS: dict[str, Contestant] = {
    "fadeout, latent weights": latent,
    "fadeout, Progressive, compiled": elements_compiled,
    "fadeout, Progressive, eager": elements_eager,
    "fadeout, Channels": channels,
    "torch.nn.utils.prune, global L1, masks held": masks_held,
    "torch.nn.utils.prune, global L1, every step": masks_renewed,
    "Torch-Pruning, group norm": group_norm,
    "Torch-Pruning, batch-norm scale": bn_scale,
    "torchao PAT, lasso": pat_lasso,
    "torchao PAT, group lasso": pat_group_lasso,
    "torchao PAT, global sparsity constraint": pat_constraint,
}


def _step(training: Training, between: Callable[[], object] = lambda: None) -> Step:
    def step() -> None:
        training.another_batch()
        training.backward()
        between()
        training.optimizer.step()

    return step


def _prunable(model: nn.Module) -> list[tuple[nn.Module, str]]:
    return [(module, "weight") for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]


def _prune_globally(model: nn.Module) -> None:
    method = prune.L1Unstructured
    prune.global_unstructured(_prunable(model), pruning_method=method, amount=SPARSITY["elements"])


def _regularized(training: Training, kind: Any, importance: Any) -> Step:
    """A step with one of Torch-Pruning's regularizers."""
    pruner = kind(
        training.model,
        training.example,
        importance=importance,
        global_pruning=True,
        pruning_ratio=SPARSITY["channels"],
        ignored_layers=[module for module in training.model.modules() if isinstance(module, nn.Linear)],
    )
    pruner.update_regularizer()
    return _step(training, lambda: pruner.regularize(training.model))


def _pat(training: Training, **group: Any) -> Step:
    logging.disable(logging.WARNING)  # it tells which GPU kernels it cannot load
    try:
        from torchao.prototype.pat import PruneOptimizer  # pyright: ignore[reportMissingImports]
    finally:
        logging.disable(logging.NOTSET)
    parameters = list(training.model.parameters())
    weights = {"params": [p for p in parameters if p.dim() > 1], **group}
    others = {"params": [p for p in parameters if p.dim() <= 1]}
    base = torch.optim.SGD([weights, others], lr=trainings.RATE, momentum=0.9, weight_decay=5e-4)
    optimizer = PruneOptimizer(base, warmup_steps=0, reg_lambda=2e-4)
    return _step(Training(training.model, training.inputs, training.labels, optimizer))
