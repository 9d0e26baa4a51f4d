"""Magnitude pruning after training: at once, or in rounds with fine-tuning (Han et al., 2015)."""

from collections.abc import Callable, Sequence
from typing import Annotated

import torch
from torch import nn
from torch.optim import Optimizer

from fadeout import criteria
from fadeout._arguments import Count, checked, shown
from fadeout._checks import checked_sparsity
from fadeout.criteria import Criterion, check_elementwise
from fadeout.masks import Masks
from fadeout.methods.method import Method, Phase
from fadeout.schedules import Fraction
from fadeout.structures.base import Structure
from fadeout.structures.elements import Elements
from fadeout.structures.scores import keep_down, looks_at_gradients, scores_of
from fadeout.torch_bridge.parameters import Prunable, has_two_dimensions, named
from fadeout.torch_bridge.sharding import block_of, distributed_as, whole


@checked
def one_shot(
    model: nn.Module,
    sparsity: Fraction,
    *,
    structure: Structure | None = None,
    criterion: Criterion = criteria.magnitude,
    prunable: Prunable = has_two_dimensions,
    before: Masks | None = None,
) -> Masks:
    """Set the ``round(sparsity * n)`` weights of lowest score to zero, and return the masks.

    Args:
        model: a trained network.
        sparsity: the fraction to remove, in (0, 1).
        structure, criterion, prunable: as in :class:`fadeout.SelectiveWeightDecay`. A criterion that
            looks at gradients finds those that the parameters hold.
        before: masks of an earlier removal: what they have taken comes first.

    >>> model = nn.Linear(10, 10)
    >>> one_shot(model, 0.9)
    Masks(1 parameters, 10 of 100 weights left)
    """
    masks = lowest(model, checked_sparsity(sparsity), before or Masks({}), structure, criterion, prunable)
    masks.apply(model)
    return masks


@checked
def iterative(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    fine_tune: Callable[[int], object],
    *,
    sparsity: Fraction,
    rounds: Count = 5,
    structure: Structure | None = None,
    criterion: Criterion = criteria.magnitude,
    prunable: Prunable = has_two_dimensions,
) -> Masks:
    """Han et al.: prune a part, fine-tune the rest, and again, until the target is reached.

    In round ``i`` of ``n`` the target is ``sparsity * i / n``; what was removed stays zero. The accuracy
    before the last removal is that which ``fine_tune`` sees at the end of round ``n - 1``.

    Args:
        model: a trained network.
        optimizer: the optimizer that ``fine_tune`` steps.
        fine_tune: called with the number of the round, from 1; trains the network further.
        sparsity, structure, criterion, prunable: as in :func:`one_shot`.
        rounds: the paper has five.

    >>> model = nn.Linear(10, 10)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> iterative(model, optimizer, lambda number: None, sparsity=0.9)
    Masks(1 parameters, 10 of 100 weights left)

    Reference: Han et al., "Learning both Weights and Connections for Efficient Neural Networks", 2015.
    """
    target, masks = checked_sparsity(sparsity), Masks({})
    for number in range(1, rounds + 1):
        masks = lowest(model, target * number / rounds, masks, structure, criterion, prunable, target)
        held = masks.hold(model, optimizer)
        try:
            fine_tune(number)
        finally:
            held.remove()
        _check_held(model, masks)
    return masks


def _check_held(model: nn.Module, masks: Masks) -> None:
    """Raise where weights that were removed have come back: somebody else has stepped."""
    parameters = named(model)
    back = [n for n, mask in masks.items() if bool(whole((parameters[n].detach() != 0) & ~mask).any())]
    if back:
        raise ValueError(
            f"weights that were removed from {', '.join(back[:5])} are no longer zero after fine_tune: it "
            "must step the optimizer that iterative() was given, not one of its own"
        )


@torch.no_grad()
def lowest(
    model: nn.Module,
    sparsity: float,
    before: Masks,
    structure: Structure | None,
    criterion: Criterion = criteria.magnitude,
    prunable: Prunable = has_two_dimensions,
    target: float | None = None,
) -> Masks:
    """What a removal, perhaps on the way to a target, would leave; what the masks before took goes first."""
    bound = (structure or Elements()).bind(model, None, prunable)
    bound.check(target or sparsity)
    criterion = bound.rank_by(criterion)
    if bound.layout.sharded:
        check_elementwise(criterion)
    scores = scores_of(bound.parameters, criterion)
    odd = bound.layout.any([bool(score.isnan().any()) for score in scores.values()])
    for name, is_odd in zip(scores, odd, strict=True):
        if is_odd:
            raise ValueError(f"{name!r} has no score: its weights hold NaN, or {criterion} gives it")
    if looks_at_gradients(criterion) and not any(bound.layout.any([bool(s.any()) for s in scores.values()])):
        raise ValueError(
            f"the criterion {shown(criterion)} scores all weights zero: it looks at gradients, which the "
            "parameters do not hold. Call backward() on a loss first"
        )
    parameters = bound.parameters
    taken = {n: ~block_of(mask, parameters[n]) for n, mask in before.items() if n in parameters}
    gone = bound.select(keep_down(scores, taken), sparsity)
    return Masks({name: distributed_as(~mask, parameters[name]) for name, mask in gone.items()})


# As methods of an experiment --------------------------------------------------------------------------------

LastFineTune = Annotated[int, "epochs after the last removal"]
FineTuneRate = Annotated[float | None, "the learning rate of fine-tuning; by default the last one"]


def one_shot_phases(epochs: int, sparsity: float) -> list[Phase]:
    """Train, then set the weights of least magnitude to zero; no fine-tuning. The paper's "weight decay"."""
    return [Phase("train", epochs, restart=True), Phase("pruned", 0, remove=sparsity)]


def han(
    epochs: int,
    sparsity: Fraction,
    rounds: Annotated[int, "removals"] = 5,
    fine_tune: Annotated[int, "epochs after each removal but the last"] = 5,
    last_fine_tune: LastFineTune = 15,
    fine_tune_lr: FineTuneRate = None,
) -> list[Phase]:
    """Han et al. 2015: train; then, five times, remove a part and fine-tune, the last time for longer."""
    if rounds < 1:
        raise ValueError(f"rounds is above 0, got {rounds}")
    lengths = [fine_tune] * (rounds - 1) + [last_fine_tune]
    return [Phase("train", epochs, restart=True)] + [
        Phase(f"fine-tune {number}", length, remove=sparsity * number / rounds, lr=fine_tune_lr)
        for number, length in enumerate(lengths, 1)
    ]


ONE_SHOT = Method(
    "one_shot",
    one_shot_phases,
    label="one-shot",
    colour="#5e3291",
    dark_colour="#a556fa",
    marker="X",
    order=1,
)
HAN = Method("han", han, label="Han et al.", colour="#dd7603", dark_colour="#e53c15", marker="^", order=2)
