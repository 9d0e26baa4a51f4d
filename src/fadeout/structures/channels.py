"""Channels: structured pruning, its target counted in what is really gone."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fadeout import criteria
from fadeout._arguments import ExampleInput, Leaves, Only, checked
from fadeout.criteria import Criterion
from fadeout.engines import Engine
from fadeout.fades import Decay, Fade
from fadeout.graph.network import Network
from fadeout.graph.trace import trace
from fadeout.structures.base import Bound, Marked, Structure, Target
from fadeout.structures.channel_candidates import (
    Layer,
    computed_layers,
    find_layers,
    warn_of_training,
    what_stays,
)
from fadeout.structures.channel_cost import Cost, find_cost, first_true
from fadeout.structures.channel_scores import TAYLOR, by_channel, joined, over_prices, roots, squares, untied
from fadeout.structures.channel_time import find_time, measure_time, time_removal
from fadeout.structures.rounding import Multiple, Rounding, find_families, find_meeting, multiple_for
from fadeout.structures.scores import Scores, not_finite, widened
from fadeout.torch_bridge.meta_copy import traceable
from fadeout.torch_bridge.parameters import (
    Prunable,
    check_kinds,
    chosen_by,
    clean,
    group_of,
    has_two_dimensions,
    held_by,
    named,
    unwrap,
)
from fadeout.torch_bridge.sharding import Layout, is_split, local, region_of

Unit = Literal["parameters", "operations", "time"]


class Channels(Structure):
    """Whole channels fade, and are removed physically by :func:`fadeout.compact`: structured pruning.

    The channels of every batch-norm whose producer and consumers are known can go. They are ranked (``by``),
    and at each step the lowest of the whole network are targeted, as many as it takes to remove the fraction
    ``sparsity`` of the network's *parameters*: a channel takes its filter and its slice of every consumer
    with it. The least number of channels is taken that reaches the target, so that the network never keeps
    more than asked for, and removes less than one channel too much. The target grows with progress, as it
    does for single weights; with ``by="scale"`` it is the whole target from the first step.

    Args:
        example_input: a tensor, a tuple of positional arguments, or a mapping of keyword arguments; it
            decides the branches of the forward that are followed.
        by: ``"scale"`` ranks by the batch-norm's scale (the paper's criterion, after Liu et al.); ``"norm"``
            by the norm of the filter with its batch-norm slice, which also makes candidates of layers
            without batch-norm, linear layers and heads of attentions included; ``"taylor"`` by how much the
            loss feels the scale, ``|scale * gradient|`` averaged over steps, over the mean of the layer and
            the square root of how many parameters go with a channel. By default ``"taylor"`` where a pruner
            is given no criterion and no :class:`fadeout.Decay`, else ``"scale"``.
        of: what the target counts: ``"parameters"``, ``"operations"`` (multiply-accumulates on the example,
            as :func:`fadeout.measure` counts them), or ``"time"``, the milliseconds of a forward pass on this
            machine, at the batch size of the example, with as many threads as PyTorch has now, of what
            ``compact(..., for_inference=True)`` leaves. Each layer is timed once at a few widths, and some
            whole networks are; what was measured is kept in the user's cache folder. At removal what is left
            is timed, and ``repr(pruner)`` has what came of it: "asked 4x, got 3.9x".
        faster: 4 says the same as ``of="time"`` and a sparsity of 0.75, which a pruner then need not be told.
        engine: where it is to be fast: ``"pytorch"``, ``"channels_last"`` (PyTorch in that memory format) or
            ``"onnxruntime"``; for ``of="time"`` and ``multiple_of="auto"``.
        filters: the filters of targeted channels fade too, not only scale and shift.
        candidates: as in the paper's networks, a batch-norm that feeds an addition which another batch-norm
            follows is left alone; ``"all"`` adds it.
        min_channels: so many channels stay in each layer, so that none collapses.
        couple: both sides of an addition keep the same channels; for ``compact(..., couple=True)``.
        multiple_of: the channels that a layer keeps are a multiple of this number, or all, or a half or a
            quarter of it: processors lose much of their speed on other widths. Layers that meet at an
            addition keep equally many, where they are no more than one multiple apart, so that nothing need
            be moved there. ``"auto"``, the default for ``of="time"``, is 8 or 16, as measured once on this
            machine; else 1, which rounds nothing, is the default. The target stays exact, to a percentage
            point: never less than asked goes, and where rounding would take more than a point too much, a
            layer is left unrounded; the ``repr`` of a pruner says which. (Where a single channel is more than
            a point, or in time a layer's step from one multiple to the next, so is what may go too much.
            Layers around a grouped convolution, other than a depthwise one, lose whole sets of channels, and
            are not rounded.)
        leaves: modules, or classes of modules, that cannot be traced; they keep all their channels.

    Reference: Section 3.3 of the paper; Liu et al., "Learning Efficient Convolutional Networks through
    Network Slimming", ICCV 2017.
    """

    _in_words = "fadeout.Channels(example_input)"
    counts_weights = False

    @checked
    def __init__(
        self,
        example_input: ExampleInput,
        *,
        by: Literal["scale", "norm", "taylor"] | None = None,
        of: Unit | None = None,
        faster: Annotated[float, Only(lambda x: 1 < x < math.inf, "a number above 1")] | None = None,
        engine: Engine = "pytorch",
        filters: bool = False,
        candidates: Literal["paper", "all"] = "paper",
        min_channels: Annotated[int, Only(lambda n: n >= 0, "a whole number from 0 on")] = 1,
        couple: bool = False,
        multiple_of: Multiple | None = None,
        leaves: Leaves = (),
    ):
        self.example_input, self.by, self.filters = example_input, by, filters
        if faster is not None and of not in (None, "time"):
            raise ValueError(
                f"faster={faster:g} is a target in time, and of={of!r} is another: leave one out"
            )
        self.of: Unit = of or ("parameters" if faster is None else "time")
        self.faster = faster
        self.engine: Engine = engine
        self.candidates, self.min_channels = candidates, min_channels
        self.couple, self.leaves = couple, tuple(leaves)
        self.multiple_of: Multiple = multiple_of or ("auto" if self.of == "time" else 1)
        self.gradual = by != "scale"  # all scales begin alike, and by them the set wants to be known early

    def __repr__(self) -> str:
        shown = {"by": self.by, "of": self.of, "candidates": self.candidates}
        usual = {"filters": False, "min_channels": 1, "couple": False, "multiple_of": 1}
        shown |= {name: vars(self)[name] for name, value in usual.items() if vars(self)[name] != value}
        shown |= {"engine": self.engine} if self.of == "time" else {}
        return f"Channels({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @property
    def sparsity(self) -> float | None:
        return None if self.faster is None else 1 - 1 / self.faster

    def criterion_for(self, model: nn.Module, fade: Fade) -> Criterion:
        """How much the loss feels a channel: its scale alone says little, all of them begin alike."""
        by_default = self.by is None and not isinstance(fade, Decay)
        return TAYLOR if by_default or self.by == "taylor" else criteria.magnitude

    def bind(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer] | None,
        prunable: Prunable,
        steps: int = 0,
    ) -> "BoundChannels":
        """Trace the network, and find the channels that can go."""
        network = self._trace(model)
        everything = named(model)
        held = None if optimizers is None else held_by(optimizers)
        trained = {n for n, p in everything.items() if p.requires_grad and (held is None or id(p) in held)}
        chosen = trained if prunable is has_two_dimensions else set(chosen_by(prunable, everything))

        def cleaned(layer: Layer) -> Layer:  # modules inside may be wrapped
            return layer.with_names(lambda name: clean(network.model, name))

        def takes_part(layer: Layer) -> bool:
            layer = cleaned(layer)
            # a list may name the filter instead; what is true of a filter says nothing of its batch-norm
            names = layer.fading[:1] if callable(prunable) else (layer.fading[0], *layer.scored)
            return trained.issuperset(layer.fading) and not chosen.isdisjoint(names)

        layers = find_layers(
            network,
            takes_part,
            by_norm=self.by == "norm",
            filters=self.filters,
            as_in_paper=self.candidates == "paper",
            couple=self.couple,
        )
        if self.of != "time":  # which counts what compact(..., for_inference=True) leaves
            warn_of_training(network, layers, self.couple)
        layers = [cleaned(layer) for layer in layers]
        parameters = {n: everything[n] for layer in layers for n in (*layer.scored, *layer.fading)}
        check_kinds(parameters)
        layout = Layout(parameters, group_of(model), alone=optimizers is None)
        return BoundChannels(self, parameters, layout, layers, network)

    def _trace(self, model: nn.Module) -> Network:
        return trace(*traceable(unwrap(model), self.example_input), self.leaves)


class BoundChannels(Bound):
    """The channels of one network."""

    structure: Channels

    def __init__(
        self,
        structure: Channels,
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
        self._count(self.structure._trace(state["cost"]), state["_measured"])

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
        from_top = [score.argsort(kind="stable").argsort() - len(score) for score in ranked]
        free = np.concatenate(from_top) < -self.structure.min_channels  # of each layer all but the highest
        together = np.concatenate(ranked)
        order = together.argsort(kind="stable")
        order = order[free[order]]
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
