"""Elements: single weights, that is, unstructured pruning."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fadeout import criteria
from fadeout._arguments import checked
from fadeout.criteria import Criterion
from fadeout.fades import Fade, Latent
from fadeout.selection import floats
from fadeout.selection import passes as kernels
from fadeout.selection.passes import Passes
from fadeout.selection.search import Finder, Lowest, find_lowest
from fadeout.structures.base import Bound, Marked, Structure, Target, change_
from fadeout.structures.layer_shares import LayerShares, count_sizes
from fadeout.structures.scores import Scores
from fadeout.torch_bridge.sharding import Layout, local
from fadeout.torch_bridge.submodules import has_kind


@checked
@dataclass(frozen=True)
class Elements(Structure):
    """Every weight is a unit of its own: unstructured pruning.

    ``w* = {w : score(w) <= delta}``, with ``delta`` such that ``n(w*) = round(T n(w))`` exactly.

    Args:
        scope: ``"network"`` ranks all weights together, ``"layer"`` those of each parameter apart.
        compile: whether to compile the passes over the weights; by default where the time is won back.

    >>> import torch
    >>> scores = {"a": torch.tensor([1.0, 4.0]), "b": torch.tensor([2.0, 3.0])}
    >>> Elements().select(scores, 0.5)
    {'a': tensor([ True, False]), 'b': tensor([ True, False])}
    """

    scope: Literal["network", "layer"] = "network"
    compile: bool | None = field(default=None, repr=False)  # it changes how weights are chosen, not which

    fade: ClassVar[Fade] = Latent()

    def select(
        self, scores: Mapping[str, Tensor], sparsity: float, layout: Layout | None = None
    ) -> dict[str, Tensor]:
        layout = layout or Layout({}, alone=True)
        layers = self.ranked_together(scores)
        totals = [
            layout.shards(names).total or sum(scores[name].numel() for name in names) for names in layers
        ]
        return _mark(scores, layers, [round(sparsity * total) for total in totals], layout)

    def criterion_for(self, model: nn.Module, fade: Fade) -> Criterion:
        """LAMP for latents of networks with norms, in which the size of a layer's weights means nothing."""
        return criteria.lamp if fade.latent and has_kind(model, "norm") else criteria.magnitude

    def ranked_together(self, names: Iterable[str]) -> list[list[str]]:
        """Which parameters are ranked together."""
        return [[name] for name in names] if self.scope == "layer" else [list(names)]

    def _bound(self, parameters: dict[str, nn.Parameter], layout: Layout, steps: int) -> "BoundElements":
        return BoundElements(self, parameters, layout, steps)


def _mark(
    scores: Mapping[str, Tensor], layers: Sequence[Sequence[str]], ks: Sequence[int], layout: Layout
) -> dict[str, Tensor]:
    """Mark the lowest scores: so many in each group of parameters that are ranked together."""
    finders = [Finder(shards=layout.shards(names)) for names in layers]
    groups = [[scores[name] for name in names] for names in layers]
    marks = {}
    for names, found in zip(layers, find_lowest(finders, groups, ks, layout.total), strict=True):
        marks |= {name: found.mask(number, scores[name]) for number, name in enumerate(names)}
    return marks


class BoundElements(Bound):
    """The weights of one network, which magnitudes rank without a score or a mask being made."""

    structure: Elements

    def __init__(
        self, structure: Elements, parameters: dict[str, nn.Parameter], layout: Layout, steps: int = 0
    ):
        super().__init__(structure, parameters, layout)
        self._steps, self._shares = steps, None
        self._rank(structure.ranked_together(parameters))

    def _rank(self, layers: list[list[str]]) -> None:
        """Rank these parameters together."""
        self._layers = layers
        # of all weights, whoever has them: so that every process and layer decides alike whether to compile
        self._totals = [sum(self.parameters[name].numel() for name in names) for names in layers]
        work, compile = self._steps * sum(self._totals), self.structure.compile
        self._finders = [
            Finder(magnitude=True, work=work, compile=compile, shards=self.layout.shards(names))
            for names in layers
        ]

    def check(self, sparsity: float) -> None:
        """Raise where a target rounds to no weight at all, or to all of them."""
        together = [sum(self._totals)] if self.structure.scope == "network" else self._totals
        if all(round(sparsity * total) == total for total in together):
            raise ValueError(
                f"sparsity={sparsity} of {sum(self._totals)} weights is all of them: nothing would be left. "
                "Ask for less"
            )
        if not any(round(sparsity * total) for total in together):
            raise ValueError(
                f"sparsity={sparsity:g} of {sum(self._totals)} weights is not even one: nothing would be "
                "removed. Ask for more, or use fadeout.NoPruning for a dense run"
            )

    def rank_by(self, criterion: Criterion) -> Criterion:
        """LAMP ranks the weights of a layer by magnitude: only the share of each layer is its own."""
        if criterion is not criteria.lamp:
            return criterion
        if self.structure.scope == "network":
            self._rank([[name] for name in self.parameters])
            self._shares = LayerShares(self._totals, max(self._steps // _LOOKS, 1))
        return criteria.magnitude

    def select(self, scores: Mapping[str, Tensor], sparsity: float) -> dict[str, Tensor]:
        if self._shares is None:
            return super().select(scores, sparsity)
        shares = LayerShares(self._totals)  # of these scores, whatever was looked up before
        ks = shares.find(round(sparsity * sum(self._totals)), lambda: self._count(scores))
        return _mark(scores, self._layers, ks, self.layout)

    def choose(self, scores: Scores, sparsity: float) -> Mapping[str, Target]:
        if not scores.are_magnitudes:
            return super().choose(scores, sparsity)
        return self.below(sparsity, scores.clock.step)

    def below(self, sparsity: float, step: int = 0) -> dict[str, "Below"]:
        """The weights of lowest magnitude, by a threshold.

        Raises:
            FloatingPointError: where a weight is not finite.
        """
        weights = {name: local(parameter.detach()) for name, parameter in self.parameters.items()}
        groups = [[weights[name] for name in names] for names in self._layers]
        if self._shares is None:
            ks = [round(sparsity * total) for total in self._totals]
        else:
            k = round(sparsity * sum(self._totals))
            ks = self._shares.find(k, lambda: self._count({n: w.abs() for n, w in weights.items()}), step)
        lowest = find_lowest(self._finders, groups, ks, self.layout.total)
        targets = {}
        for names, finder, found in zip(self._layers, self._finders, lowest, strict=True):
            passes = finder.passes(found.wide)
            for number, name in enumerate(names):
                targets[name] = Below(found, number, passes)
        return targets

    def state(self) -> dict[str, Any]:
        return {} if self._shares is None else {"kept": self._shares.kept.tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        if self._shares is not None and "kept" in state:
            self._shares.kept = np.array(state["kept"], np.int64)

    def _count(self, scores: Mapping[str, Tensor]) -> np.ndarray:
        """How many scores of each layer there are of each size, on all processes."""
        none = torch.zeros_like(count_sizes(torch.zeros(0, device="cpu")))
        counts = [count_sizes(scores[name]) if self.layout.owns(name) else none for name, *_ in self._layers]
        return self.layout.add(torch.stack(counts)).long().numpy()


_LOOKS = 200  # in a training, at LAMP's share of each layer


class Below:
    """The targeted weights by a threshold on their magnitude: no mask of the parameter is ever made.

    Args:
        lowest: the lowest weights of all parameters.
        number: that of the parameter among them.
        passes: how to go over it.
    """

    def __init__(self, lowest: Lowest, number: int, passes: Passes):
        self.lowest, self._number, self._passes = lowest, number, passes
        ties = lowest.ties[number] if lowest.ties else None
        self._ties = None if ties is None or not ties.numel() else ties
        # what targeted weights are below, but for ties that have to be told apart
        self._limit = lowest.threshold if lowest.ties else floats.after(lowest.threshold, passes.wide)

    def mask(self, weight: Tensor) -> Tensor:
        return self.lowest.mask(self._number, weight)

    def parts(self, weight: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
        rows = self._rows(weight, *others)
        if rows is None:
            yield self.mask(weight), weight, *others
            return
        for pieces in zip(*map(kernels.pieces, rows), strict=True):
            size = pieces[0].abs().to(self._passes.wide)
            yield size < self._limit, *pieces

    def threshold(self, weight: Tensor, most: Callable[[float], float]) -> float:
        return max(self.lowest.threshold, 0.0)  # of all parameters that are ranked together

    def scale_(self, weight: Tensor, factor: float) -> None:
        if self.lowest.threshold < 0 or not weight.numel():  # nothing is targeted
            return
        row = kernels.flat(weight)
        if row.dtype != self._passes.wide or row.data_ptr() != weight.data_ptr():
            change_(self, weight, lambda wide: wide * factor)
            return
        self._passes.shrink(row, self._limit, factor)
        if self._ties is not None:  # after the pass, under whose limit the factor takes them
            positions = torch.unravel_index(self._ties, weight.shape)
            shrunk = weight[positions] * factor
            weight[positions] = shrunk.masked_fill_(shrunk.abs() < torch.finfo(weight.dtype).tiny, 0)

    def pull_(self, weight: Tensor, now: Tensor, before: Tensor, back: float) -> None:
        rows = self._rows(weight, now, before)
        if rows is None:
            Marked(self.mask(weight)).pull_(weight, now, before, back)
        elif self.lowest.threshold >= 0:  # below it nothing is targeted
            sizes, row, was = rows
            self._passes.pull(sizes, row, was, self._limit, back)

    def write(self, sparse: Callable[..., Tensor], weight: Tensor, out: Tensor, threshold: float) -> None:
        rows = self._rows(weight, out)
        if rows is None:
            Marked(self.mask(weight)).write(sparse, weight, out, threshold)
        else:  # the threshold says all, and nobody needs a mask
            self._passes.write(sparse, rows[0], rows[1], threshold)

    def _rows(self, *tensors: Tensor) -> list[Tensor] | None:
        """Tensors of the same layout in the order of their memory, where there are no ties to tell apart."""
        first = tensors[0]
        if self._ties is not None or any(tensor.stride() != first.stride() for tensor in tensors):
            return None
        rows = [kernels.flat(tensor) for tensor in tensors]
        return rows if rows[0].data_ptr() == first.data_ptr() else None
