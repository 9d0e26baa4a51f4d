"""The channels of one network: which of them are lowest, and what is left when these are gone."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fadeout.criteria import Criterion
from fadeout.graph.network import Network
from fadeout.graph.trace import trace
from fadeout.structures.base import Bound, Marked, Target
from fadeout.structures.channels.candidates import Layer, computed_layers, what_stays
from fadeout.structures.channels.cost import Cost, find_cost, first_true
from fadeout.structures.channels.network_times import find_time, measure_time, time_removal
from fadeout.structures.channels.rounding import Rounding, find_families, find_meeting, multiple_for
from fadeout.structures.channels.scores import (
    TAYLOR,
    by_channel,
    joined,
    lowest_first,
    over_prices,
    roots,
    squares,
    untied,
)
from fadeout.structures.scores import Scores, not_finite, widened
from fadeout.torch_bridge.meta_copy import traceable
from fadeout.torch_bridge.parameters import unwrap
from fadeout.torch_bridge.sharding import Layout, is_split, local, region_of

if TYPE_CHECKING:  # which binds itself to networks
    from fadeout.structures.channels.structure import Channels


def trace_for(structure: "Channels", model: nn.Module) -> Network:
    """The graph of a network on the example, or of one like it where its parameters are sharded."""
    return trace(*traceable(unwrap(model), structure.example_input), structure.leaves)


class BoundChannels(Bound):
    """The channels of one network."""

    structure: "Channels"

    def __init__(
        self,
        structure: "Channels",
        parameters: dict[str, nn.Parameter],
        layout: Layout,
        layers: list[Layer],
        network: Network,
    ):
        super().__init__(structure, parameters, layout)
        self.layers = layers
        self._count(network)
        self._relative = False  # scores are compared over the mean of their layer, and what a channel costs
        self._last = 0  # how many channels the last selection took: the next takes nearly as many

    def state(self) -> dict[str, Any]:
        return dict(self._measured)

    def restore(self, state: Mapping[str, Any]) -> None:
        measured = {**self._measured, **state}  # another machine may like other widths, and take other times
        if measured != self._measured:
            self._count(self.cost.network, measured)

    def _count(self, network: Network, measured: Mapping[str, Any] | None = None) -> None:
        """Find out what channels cost, and how widths are rounded.

        Args:
            network: as it was traced.
            measured: what depends on the machine, if it is known already.
        """
        widths, structure = {layer.name: layer.width for layer in self.layers}, self.structure
        self.computed = computed_layers(network)
        timed, families = structure.of == "time", list[list[int]]()
        if timed or structure.multiple_of != 1:
            families = find_families(network, widths, structure.couple)
        if measured is None:
            asks = timed or structure.multiple_of == "auto"
            make = partial(self._measure, network, widths, families)
            measured = self.layout.agree(make) if asks else make()
        self._measured = dict(measured)
        self.cost: Cost
        if structure.of == "time":  # as timed says; here it tells types apart
            self.cost = find_time(network, widths, structure.couple, measured["times"])
        else:
            self.cost = find_cost(network, widths, of=structure.of, couple=structure.couple)
        self.rounding: Rounding | None = None
        if measured.get("multiple_of", 1) != 1:
            self.rounding = self._rounded(int(measured["multiple_of"]), families, self.cost)

    def _measure(
        self, network: Network, widths: Mapping[str, int], families: Sequence[Sequence[int]]
    ) -> dict[str, Any]:
        """What depends on the machine."""
        structure, found = self.structure, dict[str, Any]()
        if structure.multiple_of != 1:
            found["multiple_of"] = multiple_for(structure.multiple_of, structure.engine)
        if structure.of == "time":
            liked = multiple_for("auto", structure.engine)
            rounding = partial(self._rounded, found.get("multiple_of", 1), families)
            found["times"] = measure_time(
                network, widths, rounding, engine=structure.engine, multiple=liked, couple=structure.couple
            )
        return found

    def _rounded(self, multiple: int, families: Sequence[Sequence[int]], cost: Cost) -> Rounding:
        meeting = find_meeting(cost.network, cost.widths, families)
        return Rounding(multiple, families, list(cost.widths), cost, self.structure.min_channels, meeting)

    def __getstate__(self) -> dict[str, Any]:
        # the graph has functions that no file takes
        return {**vars(self), "cost": self.cost.network.model, "rounding": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._count(trace_for(self.structure, state["cost"]), state["_measured"])

    @cached_property
    def _prices(self) -> list[float]:
        cost = self.cost
        if self.structure.of != "parameters":
            cost = find_cost(cost.network, cost.widths, couple=self.structure.couple)
        return [cost.of_one(layer.name) for layer in self.layers]

    @property
    def fading(self) -> Sequence[str]:
        return [name for layer in self.layers for name in layer.fading]

    def in_words(self) -> str:
        count = sum(layer.width - len(layer.stays) for layer in self.layers)
        words = f"{count:,} channels of {len(self.layers)} layers"
        if self.computed:
            hows = ", ".join(dict.fromkeys(how for how, _ in self.computed.values()))
            words += f" ({len(self.computed)} more keep all: {hows} computes their weights)"
        if self.rounding is None:
            return words
        which = ", ".join(self.rounding.unrounded)
        rest = f", but for {which}, left unrounded for the sake of the target" if which else ""
        return f"{words}, widths in multiples of {self.rounding.multiple}{rest}"

    def rank_by(self, criterion: Criterion) -> Criterion:
        self._relative = criterion is TAYLOR
        if self.structure.by == "taylor" and not self._relative:
            raise ValueError(
                f"Channels(by='taylor') ranks by gradients of a training, and the criterion is {criterion}: "
                "use SelectiveWeightDecay without a criterion, or by='scale' or 'norm'"
            )
        return criterion

    def check(self, sparsity: float) -> None:
        """Raise where the target is out of reach."""
        own = self.structure.sparsity
        if own is not None and sparsity != own:
            raise ValueError(f"faster={1 / (1 - own):g} is sparsity={own:g}, got {sparsity:g}: say it once")
        least, given = self.structure.min_channels, f"min_channels={self.structure.min_channels}"
        if self.rounding is not None:
            least, given = self.rounding.least(), f"{given} and multiple_of={self.rounding.multiple}"
        most = 1 - self.cost.at_most_left(least) / self.cost.total
        if sparsity > most and self.structure.of == "time":
            raise ValueError(
                f"no choice of channels is {1 / (1 - sparsity):.3g} times as fast in {self.structure.engine} "
                f"on this machine: with {given} at least "
                f"{1e3 * self.cost.total * (1 - most):.3g} of {1e3 * self.cost.total:.3g} ms are left, "
                f"{math.floor(100 / (1 - most)) / 100:g} times as fast"
            )
        if sparsity > most:
            raise ValueError(
                f"sparsity={sparsity:g} of the {self.structure.of} cannot be reached by removing channels: "
                f"with {given} at most {math.floor(most * 1e4) / 1e4:g} can go{what_stays(self.cost.network)}"
            )

    def choose(self, scores: Scores, sparsity: float) -> Mapping[str, Target]:
        if not scores.are_magnitudes:
            return super().choose(scores, sparsity)
        # norms do not ask for signs: no score of each weight is written down
        if not_finite(self.parameters, self.layout) is not None:
            raise FloatingPointError
        weights = {name: widened(local(parameter.detach())) for name, parameter in self.parameters.items()}
        sizes = {name: weight if weight.dim() > 1 else weight.abs() for name, weight in weights.items()}
        return {name: Marked(mask) for name, mask in self.select(sizes, sparsity).items()}

    def select(self, scores: Mapping[str, Tensor], sparsity: float) -> dict[str, Tensor]:
        """Mark scale and shift of the channels that a removal at this sparsity would take."""
        sizes = self._sizes(scores)
        ranked = [joined([layer.by_unit(n, sizes[n]) for n in layer.scored]) for layer in self.layers]
        ranked = untied(over_prices(ranked, self._prices) if self._relative else ranked)
        for layer, own in zip(self.layers, ranked, strict=True):
            own[list(layer.stays)] = math.inf
        if self.rounding is not None:
            return self._masks(self.rounding.choose(ranked, sparsity * self.cost.total))
        together, order = np.concatenate(ranked), lowest_first(ranked, self.structure.min_channels)
        ends = np.cumsum([layer.width for layer in self.layers])[:-1]

        def alive(count: int) -> dict[str, np.ndarray]:
            stays = np.ones(len(together), bool)
            stays[order[:count]] = False
            return {layer.name: mask for layer, mask in zip(self.layers, np.split(stays, ends), strict=True)}

        wanted = sparsity * self.cost.total
        self._last = first_true(
            lambda count: self.cost.total - self.cost.left(alive(count)) >= wanted, len(order), self._last
        )
        held = int(np.isneginf(together[order]).sum())  # such as a pruner keeps down are taken in any case
        return self._masks(alive(max(self._last, held)))

    def outcome(self, sparsity: float) -> str:
        """What became of a target in time: the network without the last choice is timed against the whole."""
        if self.structure.of != "time":
            return ""
        network, engine, couple = self.cost.network, self.structure.engine, self.structure.couple
        before, after = self.layout.agree(lambda: time_removal(network, self._alive, engine, couple))
        asked, got = 1 / (1 - sparsity), before / after
        return (
            f"asked {asked:.3g}x, got {got:.3g}x: {1e3 * before:.3g} ms became {1e3 * after:.3g} in {engine}"
        )

    def _masks(self, chosen: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        """Marks for all that fades, of what stays of each layer."""
        self._alive = chosen
        return {
            name: self._spread(layer, ~torch.from_numpy(chosen[layer.name]), name)
            for layer in self.layers
            for name in layer.fading
        }

    def _sizes(self, scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """For each scored parameter one number for each channel: its score, or the norm of its scores.

        Where a parameter is sharded, these vectors are put together, in one sum over all processes.
        """
        dims = {name: layer.dim(name) for layer in self.layers for name in layer.scored}
        names = list(dims)
        sizes = {name: by_channel(scores[name].movedim(dim, 0)) for name, dim in dims.items()}
        if not self.layout.sharded:
            return sizes
        regions = {name: region_of(self.parameters[name]) for name in names}
        split = {name: is_split(self.parameters[name], dims[name]) for name in names}
        parts = []
        for name, region in regions.items():
            dim = dims[name]
            part = torch.zeros(region.whole[dim], dtype=torch.float64, device="cpu")
            if self.layout.owns(name):
                part[region.slices[dim]] = (squares(sizes[name]) if split[name] else sizes[name]).cpu()
            parts.append(part)
        sums = self.layout.add(torch.cat(parts)).split([len(part) for part in parts])
        return {n: roots(own) if split[n] else own for n, own in zip(names, sums, strict=True)}

    def _spread(self, layer: Layer, dead: Tensor, name: str) -> Tensor:
        """The mask of this process's block of a parameter."""
        block, region = local(self.parameters[name]), region_of(self.parameters[name])
        dim = layer.dim(name)
        rows = layer.by_slice(name, dead, region.whole[dim])[region.slices[dim]]
        shape = [-1 if d == dim else 1 for d in range(block.dim())]
        return rows.to(block.device).view(shape).expand_as(block)
