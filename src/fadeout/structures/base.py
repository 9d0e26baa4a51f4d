"""What every structure is: the unit that is pruned as a whole, and what a choice of such units looks like.

A :class:`Structure` is what a user composes; bound to a network it chooses the units of lowest score
(:class:`Bound`), and says for each parameter which weights are targeted (:class:`Target`). A structure of
one's own is one class with a ``select``.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fadeout import criteria
from fadeout.criteria import Criterion
from fadeout.fades import Fade, Progressive
from fadeout.selection.floats import before, only_at
from fadeout.selection.passes import pull_
from fadeout.structures.scores import Scores
from fadeout.torch_bridge.computed_parameters import check_stored
from fadeout.torch_bridge.parameters import Prunable, choose, group_of
from fadeout.torch_bridge.sharding import Layout, local


class Target(Protocol):
    """Which weights of one parameter are targeted, by mask or by threshold."""

    def mask(self, weight: Tensor) -> Tensor:
        """True where a weight is targeted."""
        ...

    def parts(self, weight: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """The parameter in pieces: a mask, the weights, and the same part of other tensors of its shape."""
        ...

    def scale_(self, weight: Tensor, factor: float) -> None:
        """Multiply the targeted weights in place; what becomes denormal is zero."""
        ...

    def pull_(self, weight: Tensor, now: Tensor, before: Tensor, back: float) -> None:
        """Move a tensor back, a part of the way to what it was before, where the weights are targeted."""
        ...

    def write(self, sparse: Callable[..., Tensor], weight: Tensor, out: Tensor, threshold: float) -> None:
        """Write the sparse form of the weights, a function of them and of :meth:`threshold`.

        It is zero where they are targeted.
        """
        ...

    def threshold(self, weight: Tensor, most: Callable[[float], float]) -> float:
        """The largest targeted magnitude that is below all others; zero where there is none.

        Args:
            weight: the parameter's weights.
            most: the highest of all processes that have a part of it.
        """
        ...


class Marked:
    """The targeted weights by a mask: for every structure and criterion."""

    def __init__(self, mask: Tensor):
        self._mask = mask

    def mask(self, weight: Tensor) -> Tensor:
        return self._mask

    def parts(self, weight: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
        yield from zip(*map(split, (self._mask, weight, *others)), strict=True)

    def scale_(self, weight: Tensor, factor: float) -> None:
        whole_rows = self._mask.dim() > 1 and not any(self._mask.stride()[1:])
        if whole_rows and weight.device.type == "cpu" and weight.dtype.itemsize >= 4:  # others are not read
            rows = self._mask[(slice(None), *[0] * (weight.dim() - 1))].nonzero().squeeze(1)
            shrunk = torch.hardshrink(weight[rows].mul_(factor), _flushed(weight.dtype))
            weight.index_copy_(0, rows, shrunk)
        else:
            scale_parts_(self, weight, factor)

    def pull_(self, weight: Tensor, now: Tensor, before: Tensor, back: float) -> None:
        for mask, there, was in self.parts(now, before):
            pull_(there, was, mask, back)

    def write(self, sparse: Callable[..., Tensor], weight: Tensor, out: Tensor, threshold: float) -> None:
        for mask, own, there in self.parts(weight, out):
            there.copy_(sparse(own, threshold).masked_fill_(mask, 0))

    def threshold(self, weight: Tensor, most: Callable[[float], float]) -> float:
        parts = [(mask, piece.abs()) for mask, piece in self.parts(weight) if piece.numel()]
        lowest = [torch.where(mask, math.inf, size).amin() for mask, size in parts]
        least = -most(-float(torch.stack(lowest).amin()) if lowest else -math.inf)
        # some criteria take larger ones; and equal ones are no fewer
        highest = [torch.where(mask & (size < least), size, 0).amax() for mask, size in parts]
        return most(float(torch.stack(highest).amax()) if highest else 0.0)


def split(tensor: Tensor, rows: int = 1) -> tuple[Tensor, ...]:
    """A tensor in slices along its first dimension, so many rows or a multiple, that a cache holds."""
    size = 1 << 18 if tensor.device.type == "cpu" else 1 << 24
    if tensor.numel() <= size:
        return (tensor,)
    row = tensor.numel() // len(tensor)
    return tensor.split(max(size // (row * rows), 1) * rows)


def scale_parts_(target: Target, weight: Tensor, factor: float) -> None:
    """Multiply the targeted weights in place, part by part; what becomes denormal is zero."""
    if weight.dtype.itemsize < 4:
        change_(target, weight, lambda wide: wide * factor)
        return
    targeted = None
    for mask, piece in target.parts(weight):
        spare = targeted if targeted is not None and targeted.shape == piece.shape else None
        targeted = only_at(mask, piece, out=spare)  # so that no branch slows the passes down
        piece.sub_(targeted)
        if factor:
            piece.add_(torch.hardshrink(targeted.mul_(factor), _flushed(weight.dtype), out=targeted))


def _flushed(dtype: torch.dtype) -> float:
    """Up to this, numbers are denormal."""
    return before(torch.finfo(dtype).tiny, dtype)


def change_(target: Target, weight: Tensor, change: Callable[[Tensor], Tensor]) -> None:
    """Change the targeted weights in place, computed in float32 or wider."""
    for mask, piece in target.parts(weight):
        wide = piece.to(torch.promote_types(piece.dtype, torch.float32))
        piece.copy_(torch.where(mask, change(wide), wide))
        flush_(piece, mask)


def flush_(weight: Tensor, targeted: Tensor) -> None:
    """Set targeted weights among the denormal numbers, on which processors are slow, to zero."""
    weight.masked_fill_(targeted & (weight.abs() < torch.finfo(weight.dtype).tiny), 0)


class Bound:
    """A structure on the weights of one network.

    Args:
        structure: which units there are, and which of them are lowest.
        parameters: those that take part, by name.
        layout: which process has which of them.
    """

    def __init__(self, structure: "Structure", parameters: dict[str, nn.Parameter], layout: Layout):
        self.structure, self.parameters, self.layout = structure, parameters, layout

    @property
    def fading(self) -> Sequence[str]:
        """The parameters whose weights may be targeted; others may take part in scores alone."""
        return list(self.parameters)

    def in_words(self) -> str:
        """What takes part, for a display."""
        count = sum(parameter.numel() for parameter in self.parameters.values())
        return f"{count:,} weights of {len(self.parameters)} parameters"

    def rank_by(self, criterion: Criterion) -> Criterion:
        """What each weight is scored by, for a criterion of which the structure may do a part itself."""
        return criterion

    def check(self, sparsity: float) -> None:
        """Raise where a target is out of reach; by default all can be reached."""

    def select(self, scores: Mapping[str, Tensor], sparsity: float) -> dict[str, Tensor]:
        """Mark the weights that a removal at this sparsity would take."""
        return self.structure.select(scores, sparsity, self.layout)

    def choose(self, scores: Scores, sparsity: float) -> Mapping[str, Target]:
        """The targeted weights at this sparsity, as scored now.

        Raises:
            FloatingPointError: where a weight is not finite.
        """
        return {name: Marked(mask) for name, mask in self.select(scores.now(), sparsity).items()}

    def outcome(self, sparsity: float) -> str:
        """What became of the target, where that must be measured; after a removal at this sparsity."""
        return ""

    def state(self) -> dict[str, Any]:
        """What the next choice depends on beside the weights, to resume from."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a :meth:`state`."""


class BoundMagnitudes(Bound):
    """One whose structure can ``mark`` by the weights' own magnitudes: no score of each is written down."""

    def choose(self, scores: Scores, sparsity: float) -> Mapping[str, Target]:
        if not scores.are_magnitudes:
            return super().choose(scores, sparsity)
        weights = {name: local(parameter.detach()) for name, parameter in self.parameters.items()}
        masks = self.structure.mark(weights, sparsity, self.layout, magnitude=True)
        return {name: Marked(mask) for name, mask in masks.items()}


class Structure:
    """What is pruned as a whole. A subclass says which units are lowest (:meth:`select`).

    >>> class Rows(Structure):
    ...     '''Whole rows, the lowest of each parameter by itself.'''
    ...     def select(self, scores, sparsity, layout=None):
    ...         marks = {}
    ...         for name, score in scores.items():
    ...             norms = score.flatten(1).norm(dim=1)
    ...             gone = norms.argsort(stable=True)[: round(sparsity * len(norms))]
    ...             marks[name] = torch.zeros_like(score, dtype=torch.bool)
    ...             marks[name][gone] = True
    ...         return marks
    >>> from fadeout.methods import one_shot
    >>> model = nn.Linear(2, 2, bias=False)
    >>> model.weight.data = torch.tensor([[1.0, 2.0], [2.0, 2.0]])
    >>> one_shot(model, 0.5, structure=Rows())["weight"]
    tensor([[False, False],
            [ True,  True]])
    """

    _in_words: ClassVar[str] = (
        "fadeout.Elements(), fadeout.Blocks(rows, columns), fadeout.NM(n, m) "
        "or fadeout.Channels(example_input)"
    )
    gradual: bool = True
    """The target grows with progress, unless ``sparsity`` is itself a schedule."""
    counts_weights: ClassVar[bool] = True
    """What is prunable is weights themselves, not what stands for whole channels."""
    fade: ClassVar[Fade] = Progressive()
    """How targeted weights go where the user names no fade."""

    @property
    def sparsity(self) -> float | None:
        """The target, where the structure itself says it: ``NM(2, 4)``, ``Channels(example, faster=4)``."""
        return None

    def select(
        self, scores: Mapping[str, Tensor], sparsity: float, layout: Layout | None = None
    ) -> dict[str, Tensor]:
        """Mark the weights that a removal at this sparsity would take.

        Args:
            scores: one tensor for each parameter.
            sparsity: the fraction to remove.
            layout: where the scores are blocks of larger ones, who has the others.
        """
        return self.mark(scores, sparsity, layout or Layout({}, alone=True))

    def mark(
        self, values: Mapping[str, Tensor], sparsity: float, layout: Layout, magnitude: bool = False
    ) -> dict[str, Tensor]:
        """The same for scores, or for weights whose magnitudes are their scores (:class:`BoundMagnitudes`).

        Raises:
            FloatingPointError: with ``magnitude``, where a weight is not finite on any process.
        """
        raise NotImplementedError(f"{type(self).__name__} has no select()")

    def criterion_for(self, model: nn.Module, fade: Fade) -> Criterion:
        """Which weights go first where the user names no criterion."""
        return criteria.magnitude

    def bind(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer] | None,
        prunable: Prunable,
        steps: int = 0,
    ) -> Bound:
        """Find the weights that take part.

        Args:
            model: the network.
            optimizers: those that train it; None where training is over, and all its weights may take part.
            prunable: which parameters to choose.
            steps: of the training, as far as it is known: whether it pays to compile.
        """
        parameters = choose(model, optimizers, prunable)
        check_stored(model, parameters)
        return self._bound(parameters, Layout(parameters, group_of(model), alone=optimizers is None), steps)

    def _bound(self, parameters: dict[str, nn.Parameter], layout: Layout, steps: int) -> Bound:
        return Bound(self, parameters, layout)
