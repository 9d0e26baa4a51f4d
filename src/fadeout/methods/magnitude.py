"""Magnitude pruning after training: at once, or in rounds with fine-tuning (Han et al., 2015)."""

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from fadeout import criteria
from fadeout.criteria import Criterion
from fadeout.masks import Masks
from fadeout.parameters import Prunable, choose, has_two_dimensions
from fadeout.structures import Elements


@torch.no_grad()
def one_shot(
    model: nn.Module,
    sparsity: float,
    *,
    structure: Elements | None = None,
    criterion: Criterion = criteria.magnitude,
    prunable: Prunable = has_two_dimensions,
) -> Masks:
    """Set the ``round(sparsity * n)`` weights of lowest score to zero, and return the masks.

    Args:
        model: a trained network.
        sparsity: the fraction to remove, in (0, 1).
        structure, criterion, prunable: as in :class:`fadeout.SelectiveWeightDecay`. A criterion that
            looks at gradients finds those that the parameters hold.

    >>> model = nn.Linear(10, 10)
    >>> one_shot(model, 0.9)
    Masks(1 parameters, 10 of 100 weights left)
    """
    if not 0 < sparsity < 1:
        raise ValueError(f"sparsity is a fraction between 0 and 1, got {sparsity!r}")
    parameters = choose(model, None, prunable)
    scores = {
        name: criterion(p.detach(), torch.zeros_like(p) if p.grad is None else p.grad)
        for name, p in parameters.items()
    }
    gone = (structure or Elements()).select(scores, sparsity)
    masks = Masks({name: ~mask for name, mask in gone.items()})
    masks.apply(model)
    return masks


def iterative(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    fine_tune: Callable[[int], object],
    *,
    sparsity: float,
    rounds: int = 5,
    structure: Elements | None = None,
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
    if rounds < 1:
        raise ValueError(f"rounds is a whole number from 1 on, got {rounds!r}")
    masks = Masks({})
    for number in range(1, rounds + 1):
        masks = one_shot(
            model,
            sparsity * number / rounds,
            structure=structure,
            criterion=criterion,
            prunable=prunable,
        )
        held = masks.hold(model, optimizer)
        fine_tune(number)
        held.remove()
    return masks
