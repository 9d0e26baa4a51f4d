"""N:M: of every m weights along the inputs, n stay."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fadeout._arguments import Count, checked
from fadeout.selection.compiled import WORTH, compiles, is_worth, shrink_lowest
from fadeout.selection.floats import as_array
from fadeout.selection.search import Finder
from fadeout.structures.base import BoundMagnitudes, Marked, Structure, Target, scale_parts_, split
from fadeout.structures.scores import Scores, not_finite
from fadeout.torch_bridge.sharding import Layout, region_of


@checked
@dataclass(frozen=True)
class NM(Structure):
    """Of every ``m`` weights along the inputs ``n`` stay: with ``NM(2, 4)`` what sparse tensor cores take.

    The weights of an output are taken ``m`` at a time along the second dimension (of filters, position by
    position), from the first on; those of highest score stay, of equal ones the last. Where ``m`` does not
    divide the inputs, the rest of each row is left alone: the ``repr`` of a pruner says how many those are.

    ``sparsity`` is the fraction of all weights in such groups, at most ``1 - n / m``. At that, to within a
    thousandth, exactly ``m - n`` of every group go. Below it (a schedule, or latent weights, whose target
    grows) exactly ``round(T n(w))`` go, the lowest that may: never more than ``m - n`` of a group.

    Args:
        n: how many of a group stay.
        m: how many a group has.
        compile: whether to compile the pass over the weights; by default where the time is won back.

    >>> import torch
    >>> scores = {"weight": torch.tensor([[4.0, 1.0, 2.0, 3.0, 9.0]])}
    >>> NM(2, 4).select(scores, 0.5)
    {'weight': tensor([[False,  True,  True, False, False]])}

    Reference: Mishra et al., "Accelerating Sparse Deep Neural Networks", 2021.
    """

    n: Count
    m: Count
    compile: bool | None = field(default=None, repr=False)  # it changes how weights fade, not which

    gradual: ClassVar[bool] = False  # pyright: ignore[reportIncompatibleVariableOverride]
    """The whole pattern from the first step: it takes the lowest of each group alone, wherever that is."""

    def __post_init__(self):
        if self.n >= self.m:
            raise ValueError(
                f"NM(n, m) keeps n of every m weights, so n is below m; got NM({self.n}, {self.m})"
            )

    @property
    def sparsity(self) -> float:
        """The fraction that goes when the pattern is complete."""
        return 1 - self.n / self.m

    def grouped(self, shape: tuple[int, ...]) -> int:
        """How many weights of a parameter are in groups.

        >>> NM(2, 4).grouped((3, 7))
        12
        """
        return shape[0] * (shape[1] // self.m * self.m) * prod(shape[2:]) if len(shape) > 1 else 0

    def mark(
        self, values: Mapping[str, Tensor], sparsity: float, layout: Layout, magnitude: bool = False
    ) -> dict[str, Tensor]:
        if magnitude and not_finite(values, layout, alone=not layout.sharded):
            raise FloatingPointError("a number is not finite")
        can_go = {name: self._mark_groups(value, magnitude) for name, value in values.items()}
        if self._is_complete(sparsity):
            return can_go
        total = sum(self.grouped(layout.region(name, value).whole) for name, value in values.items())
        ranked = [
            torch.where(can_go[name], value.abs() if magnitude else value, torch.inf)
            for name, value in values.items()
        ]
        lowest = Finder(shards=layout.shards(values))(ranked, round(sparsity * total))
        return {name: lowest.mask(number, ranked[number]) for number, name in enumerate(values)}

    def _is_complete(self, sparsity: float) -> bool:
        """Whether ``m - n`` of every group go at this sparsity."""
        return sparsity >= self.sparsity - _COMPLETE

    def _mark_groups(self, values: Tensor, magnitude: bool) -> Tensor:
        """Mark the ``m - n`` lowest of each group, of equal ones the first."""
        marks = torch.zeros_like(values, dtype=torch.bool, memory_format=torch.contiguous_format)
        for piece, mark in zip(split(marks), self._mark_pieces(values, magnitude), strict=True):
            piece.copy_(mark)
        return marks

    def _mark_pieces(self, values: Tensor, magnitude: bool) -> Iterator[Tensor]:
        """The same for each piece of :func:`split`: every weight is compared with all of its group.

        That is, with the one so many inputs further on, in the order of memory, where nothing has to be
        gathered; where that one is in another group, it does not count.
        """
        if not self.grouped(tuple(values.shape)):
            yield from (torch.zeros_like(piece, dtype=torch.bool) for piece in split(values))
            return
        pieces, width = split(values), prod(values.shape[2:])
        later, reaches = self._places(values)
        first = as_array(pieces[0].reshape(-1))
        library: Any = torch if isinstance(first, Tensor) else np
        # all pieces share this memory: to be given it anew for each takes as long as the comparisons
        sizes, flags, lower = map(library.empty_like, (first, reaches[0][: len(later)], later))
        for piece in pieces:
            row = as_array(piece.reshape(-1))
            size = library.abs(row, out=sizes[: len(row)]) if magnitude else row
            lower[:] = later  # how many of its group: later ones, unless they prove not to be
            own = lower[: len(row)]
            for distance, reach in enumerate(reaches, 1):
                step = distance * width
                not_higher = library.less_equal(size[:-step], size[step:], out=flags[: len(row) - step])
                not_higher &= reach[: len(row) - step]
                own[step:] += not_higher.view(_BYTE[library])
                own[:-step] -= not_higher.view(_BYTE[library])
            yield torch.as_tensor(own < self.m - self.n, device=piece.device).view(piece.shape)

    def _places(self, values: Tensor) -> tuple[Any, list[Any]]:
        """What :func:`_places` says of a piece of :func:`split`; of at least so many numbers."""
        inputs, width, number = values.shape[1], prod(values.shape[2:]), split(values)[0].numel()
        period = self.m if inputs % self.m == 0 else inputs
        if values.device.type == "cpu":  # pieces are small enough to keep what most layers have in common
            later, reaches = _places(self.m, period, width, max(number, 1 << 18), values.device)
        else:
            later, reaches = _places.__wrapped__(self.m, period, width, number, values.device)
        return later[:number], reaches

    def _shrink_lowest(self, weight: Tensor, factor: float) -> None:
        """Multiply the ``m - n`` lowest of each group in place, by compiled code that needs no marks."""
        later = torch.as_tensor(self._places(weight)[0], device=weight.device)
        width = prod(weight.shape[2:])
        for row in (piece.view(-1) for piece in split(weight)):
            shrink_lowest(row, later[: len(row)], self.n, self.m, width, factor)

    def _bound(self, parameters: dict[str, nn.Parameter], layout: Layout, steps: int) -> "BoundNM":
        return BoundNM(self, parameters, layout, steps)


_COMPLETE = 1e-3  # 0.333 means a third
_MOST = 16  # of a group that are compiled for: the code has a line for each comparison
_BYTE: dict[Any, Any] = {np: np.int8, torch: torch.int8}


@lru_cache(maxsize=4)
def _places(m: int, inputs: int, width: int, number: int, device: torch.device) -> tuple[Any, list[Any]]:
    """For so many weights in the order of memory, what follows from their places in their groups.

    Returns:
        how many of its group come after each weight, and for each distance whether it is still within it.
    """
    places = torch.arange(inputs, device=device)
    rest = places >= inputs // m * m
    place = torch.where(rest, m, places % m)  # in a group; the rest is compared with nothing
    later = torch.where(rest, m, m - 1 - place)  # and is never among the lowest
    kind, rows = torch.int8 if m < 128 else torch.int16, -(-number // (inputs * width))
    place, later = (
        as_array(row.to(kind).repeat_interleave(width).repeat(rows)[:number]) for row in (place, later)
    )
    return later, [place < m - distance for distance in range(1, m)]


class LowestOfGroups(Marked):
    """The targeted weights of a complete pattern: marked piece by piece, where and when they are needed."""

    def __init__(self, bound: "BoundNM"):
        self._bound, self._structure = bound, bound.structure

    def mask(self, weight: Tensor) -> Tensor:
        return self._structure._mark_groups(weight, magnitude=True)

    def parts(self, weight: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
        marks = self._structure._mark_pieces(weight, magnitude=True)
        yield from zip(marks, *map(split, (weight, *others)), strict=True)

    def scale_(self, weight: Tensor, factor: float) -> None:
        if not self._structure.grouped(tuple(weight.shape)):
            return
        rows = weight.movedim(1, -1)
        if rows.is_contiguous():  # channels_last: a matrix, the inputs of each position side by side
            weight = rows.view(-1, rows.shape[-1])
        if is_worth(torch.float32, weight) and self._bound.compiles:
            self._structure._shrink_lowest(weight, factor)
        else:
            scale_parts_(self, weight, factor)


class BoundNM(BoundMagnitudes):
    """The groups of one network."""

    structure: NM

    def __init__(self, structure: NM, parameters: dict[str, nn.Parameter], layout: Layout, steps: int):
        super().__init__(structure, parameters, layout)
        self._steps = steps
        shapes = [tuple(parameter.shape) for parameter in parameters.values()]
        self._grouped = sum(map(structure.grouped, shapes))
        self._left_alone = sum(map(prod, shapes)) - self._grouped
        if not self._grouped:
            raise ValueError(
                f"none of the prunable parameters has {structure.m} inputs, of which {structure} would keep "
                f"{structure.n}: take a smaller m, or choose others with prunable="
            )
        cut = layout.any([self._is_cut(parameter) for parameter in parameters.values()])
        for name, is_cut in zip(parameters, cut, strict=True):
            if is_cut:
                raise ValueError(
                    f"{name!r} is sharded along its inputs at a place that {structure.m} does not divide, "
                    "which cuts groups in two: shard whole rows, as FSDP2 does, or leave it out (prunable=)"
                )

    def choose(self, scores: Scores, sparsity: float) -> Mapping[str, Target]:
        """The same as from masks, which a complete pattern does not need: a group knows what is lowest."""
        if not (scores.are_magnitudes and self.structure._is_complete(sparsity)):
            return super().choose(scores, sparsity)
        if not_finite(self.parameters, self.layout, alone=not self.layout.sharded):
            raise FloatingPointError("a number is not finite")
        return {name: LowestOfGroups(self) for name in self.parameters}

    @cached_property
    def compiles(self) -> bool:
        """Whether the weights fade by compiled code: known once the first is to."""
        structure, device = self.structure, next(iter(self.parameters.values())).device
        if structure.m > _MOST:
            return False
        ones = torch.ones(WORTH // structure.m + 1, structure.m, device=device)
        work = self._steps * self._grouped / 4  # each wins a quarter of what single weights do
        return compiles(lambda: structure._shrink_lowest(ones, 0.5), work, structure.compile)

    def check(self, sparsity: float) -> None:
        """Raise where the target is above what the pattern removes, or rounds to no weight at all."""
        if not round(sparsity * self._grouped):
            raise ValueError(
                f"sparsity={sparsity:g} of {self._grouped} weights in groups is not even one: nothing would "
                "be removed. Ask for more, or use fadeout.NoPruning for a dense run"
            )
        most = self.structure.sparsity
        if sparsity > most + _COMPLETE:
            raise ValueError(
                f"{self.structure} keeps {self.structure.n} of every {self.structure.m} weights, so that "
                f"at most {most:g} of them can go, got sparsity={sparsity:g}: pass sparsity={most:g}"
            )

    def in_words(self) -> str:
        rest = f", {self._left_alone} weights left alone" if self._left_alone else ""
        return f"{super().in_words()}{rest}"

    def _is_cut(self, parameter: nn.Parameter) -> bool:
        """Whether this process's block begins or ends within a group."""
        region = region_of(parameter)
        if len(region.whole) < 2:
            return False
        first, last = region.offset[1], region.offset[1] + region.shape[1]
        grouped = region.whole[1] // self.structure.m * self.structure.m
        return any(0 < edge < grouped and edge % self.structure.m > 0 for edge in (first, last))
