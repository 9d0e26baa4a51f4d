"""Channels: structured pruning, its target counted in what is really gone."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.optim import Optimizer

from fadeout import criteria
from fadeout._arguments import ExampleInput, Leaves, Only, checked
from fadeout.criteria import Criterion
from fadeout.fades import Decay, Fade
from fadeout.graph.rules.base import Network, Of
from fadeout.graph.rules.calls import source
from fadeout.graph.trace import trace
from fadeout.selection.floats import double
from fadeout.selection.search import lowest
from fadeout.structures.base import Bound, Structure
from fadeout.structures.channel_candidates import (
    Layer,
    feeds_a_normed_addition,
    filters_of,
    find_heads,
    removable,
    why_nothing_can_go,
)
from fadeout.structures.channel_cost import find_cost
from fadeout.structures.rounding import Multiple, Rounding, agreed_multiple, find_families, first_true
from fadeout.torch_bridge.meta_copy import traceable
from fadeout.torch_bridge.parameters import (
    Prunable,
    check_kinds,
    chosen_by,
    group_of,
    has_two_dimensions,
    held_by,
    named,
    unwrap,
)
from fadeout.torch_bridge.sharding import Layout, is_split, local, region_of


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
            loss feels the scale, ``|scale * gradient|`` averaged over steps and divided by the mean of the
            layer. By default ``"taylor"`` where a pruner is given no criterion and no
            :class:`fadeout.Decay`, else ``"scale"``.
        of: ``"parameters"``, or ``"operations"`` for a target in multiply-accumulates.
        filters: the filters of targeted channels fade too, not only scale and shift.
        candidates: as in the paper's networks, a batch-norm that feeds an addition which another batch-norm
            follows is left alone; ``"all"`` adds it.
        min_channels: so many channels stay in each layer, so that none collapses.
        couple: both sides of an addition keep the same channels; for ``compact(..., couple=True)``.
        multiple_of: the channels that a layer keeps are a multiple of this number, or all, or fewer than
            one multiple: processors lose much of their speed on other widths. ``"auto"`` is 8 or 16, as
            measured on this machine. The target stays exact, to a percentage point: never less than asked
            goes, and where rounding would take more than a point too much, a layer is left unrounded; the
            ``repr`` of a pruner says which. (Where a single channel is more than a point, so is what may
            go too much. Layers around a grouped convolution, other than a depthwise one, lose whole sets
            of channels, and are not rounded.) 1 rounds nothing.
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
        of: Of = "parameters",
        filters: bool = False,
        candidates: Literal["paper", "all"] = "paper",
        min_channels: Annotated[int, Only(lambda n: n >= 0, "a whole number from 0 on")] = 1,
        couple: bool = False,
        multiple_of: Multiple = 1,
        leaves: Leaves = (),
    ):
        self.example_input, self.by, self.filters = example_input, by, filters
        self.of: Of = of
        self.candidates, self.min_channels = candidates, min_channels
        self.couple, self.leaves = couple, tuple(leaves)
        self.multiple_of: Multiple = multiple_of
        self.gradual = by != "scale"  # all scales begin alike, and by them the set wants to be known early

    def __repr__(self) -> str:
        rounded = f", multiple_of={self.multiple_of!r}" if self.multiple_of != 1 else ""
        return f"Channels(by={self.by!r}, of={self.of!r}, candidates={self.candidates!r}{rounded})"

    def criterion_for(self, model: nn.Module, fade: Fade) -> Criterion:
        """How much the loss feels a channel: its scale alone says little, all of them begin alike."""
        by_default = self.by is None and not isinstance(fade, Decay)
        return _TAYLOR if by_default or self.by == "taylor" else criteria.magnitude

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
        layers = self._layers(network, everything, optimizers, prunable)
        parameters = {n: everything[n] for layer in layers for n in (*layer.scored, *layer.fading)}
        check_kinds(parameters)
        layout = Layout(parameters, group_of(model), alone=optimizers is None)
        return BoundChannels(self, parameters, layout, layers, network)

    def _trace(self, model: nn.Module) -> Network:
        return trace(*traceable(unwrap(model), self.example_input), self.leaves)

    def _layers(
        self,
        network: Network,
        everything: Mapping[str, nn.Parameter],
        optimizers: Sequence[Optimizer] | None,
        prunable: Prunable,
    ) -> list[Layer]:
        """The layers of which channels can go, are trained, and are among those that the user has chosen."""
        held = None if optimizers is None else held_by(optimizers)
        trained = {n for n, p in everything.items() if p.requires_grad and (held is None or id(p) in held)}
        layers = [layer for node in network.graph.nodes if (layer := self._layer(node, network)) is not None]
        heads = find_heads(network) if self.by == "norm" else []
        chosen = trained if prunable is has_two_dimensions else chosen_by(prunable, everything)
        layers, heads = (
            [one for one in several if trained.issuperset(one.fading) and one.fading[0] in chosen]
            for several in (layers, heads)
        )
        layers = [*removable(network, layers, self.couple), *removable(network, heads, self.couple)]
        if not layers:
            raise ValueError(why_nothing_can_go(network, self.by == "norm"))
        return layers

    def _layer(self, node: fx.Node, network: Network) -> Layer | None:
        """The layer whose channels come out of this node, if they may be pruned."""
        rule, by_norm = network.rules[node], self.by == "norm"
        if node.op != "call_module" or len(network.sites(node)) > 1:
            return None
        name = str(node.target)
        own = tuple(f"{name}.{each}" for each in rule.scales(network.module(node)))
        if own:
            if self.candidates == "paper" and feeds_a_normed_addition(node, network):
                return None
            filters = filters_of(source(node), network)
            fading = (*own, *filters) if self.filters else own
            width = len(network.model.get_parameter(own[0]))
            return Layer(name, width, fading, (*own, *filters) if by_norm else own[:1])
        if by_norm and not any(network.rules[user].normalizes for user in node.users):
            filters = filters_of(node, network)
            width = len(network.model.get_parameter(filters[0])) if filters else 0
            return Layer(name, width, filters, filters) if filters else None
        return None


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
        self._relative = False  # scores are compared over the mean of their layer
        self._last = 0  # how many channels the last selection took: the next takes nearly as many

    def state(self) -> dict[str, Any]:
        return {} if self.rounding is None else {"multiple_of": self.rounding.multiple}

    def restore(self, state: Mapping[str, Any]) -> None:
        if self.rounding is not None:  # another machine may like another one
            self.rounding.multiple = int(state.get("multiple_of", self.rounding.multiple))

    def _count(self, network: Network) -> None:
        """Find out what channels cost, and how widths are rounded."""
        widths, structure = {layer.name: layer.width for layer in self.layers}, self.structure
        self.cost = find_cost(network, widths, of=structure.of, couple=structure.couple)
        self.rounding: Rounding | None = None
        if structure.multiple_of != 1:
            self.rounding = Rounding(
                agreed_multiple(structure.multiple_of, self.layout),
                find_families(network, widths, structure.couple),
                list(widths),
                self.cost,
                structure.min_channels,
            )

    def __getstate__(self) -> dict[str, Any]:
        # the graph has functions that no file takes
        return {**vars(self), "cost": self.cost.network.model, "rounding": self.state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._count(self.structure._trace(state["cost"]))
        self.restore(state["rounding"])

    @property
    def fading(self) -> Sequence[str]:
        return [name for layer in self.layers for name in layer.fading]

    def in_words(self) -> str:
        words = f"{sum(layer.width for layer in self.layers):,} channels of {len(self.layers)} layers"
        if self.rounding is None:
            return words
        which = ", ".join(self.rounding.unrounded)
        rest = f", but for {which}, left unrounded for the sake of the target" if which else ""
        return f"{words}, widths in multiples of {self.rounding.multiple}{rest}"

    def rank_by(self, criterion: Criterion) -> Criterion:
        self._relative = criterion is _TAYLOR
        if self.structure.by == "taylor" and not self._relative:
            raise ValueError(
                f"Channels(by='taylor') ranks by gradients of a training, and the criterion is {criterion}: "
                "use SelectiveWeightDecay without a criterion, or by='scale' or 'norm'"
            )
        return criterion

    def check(self, sparsity: float) -> None:
        """Raise where the target is out of reach."""
        most = 1 - self.cost.at_most_left(self.structure.min_channels) / self.cost.total
        if sparsity > most:
            raise ValueError(
                f"sparsity={sparsity:g} of the {self.structure.of} cannot be reached by removing channels: "
                f"with min_channels={self.structure.min_channels} at most "
                f"{math.floor(most * 1e4) / 1e4:g} can go"
            )

    def select(self, scores: Mapping[str, Tensor], sparsity: float) -> dict[str, Tensor]:
        """Mark scale and shift of the channels that a removal at this sparsity would take."""
        sizes = self._sizes(scores)
        ranked = [_together([layer.by_unit(n, sizes[n]) for n in layer.scored]) for layer in self.layers]
        ranked = [_over_mean(scores) for scores in ranked] if self._relative else ranked
        if self.rounding is not None:
            return self._masks(self.rounding.choose(ranked, sparsity * self.cost.total))
        free = np.concatenate([self._free(score) for score in ranked])
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

    def _masks(self, chosen: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        """Marks for all that fades, of what stays of each layer."""
        return {
            name: self._spread(layer, ~torch.from_numpy(chosen[layer.name]), name)
            for layer in self.layers
            for name in layer.fading
        }

    def _sizes(self, scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """For each scored parameter one number for each channel: its score, or the norm of its scores.

        Where a parameter is sharded, these vectors are put together, in one sum over all processes.
        """
        names = [name for layer in self.layers for name in layer.scored]
        sizes = {name: _by_channel(scores[name]) for name in names}
        if not self.layout.sharded:
            return sizes
        regions = {name: region_of(self.parameters[name]) for name in names}
        split = {name: is_split(self.parameters[name]) for name in names}
        parts = []
        for name, region in regions.items():
            part = torch.zeros(region.whole[0], dtype=torch.float64, device="cpu")
            if self.layout.owns(name):
                part[region.slices[0]] = (_squares(sizes[name]) if split[name] else sizes[name]).cpu()
            parts.append(part)
        sums = self.layout.add(torch.cat(parts)).split([len(part) for part in parts])
        return {n: _roots(own) if split[n] else own for n, own in zip(names, sums, strict=True)}

    def _spread(self, layer: Layer, dead: Tensor, name: str) -> Tensor:
        """The mask of this process's block of a parameter."""
        block, region = local(self.parameters[name]), region_of(self.parameters[name])
        rows = layer.by_slice(name, dead, region.whole[0])[region.slices[0]]
        return rows.to(block.device).view(-1, *[1] * (block.dim() - 1)).expand_as(block)

    def _free(self, scores: np.ndarray) -> np.ndarray:
        """All but the highest ``min_channels`` of a layer, which must stay."""
        stay = lowest([torch.from_numpy(scores)], max(len(scores) - self.structure.min_channels, 0))
        return stay[0].numpy()


_TAYLOR = criteria.moving_average(criteria.taylor, decay=0.99, before=criteria.magnitude)


def _over_mean(scores: np.ndarray) -> np.ndarray:
    """Scores over the mean of their layer, so that layers compare; minus infinity stays what it is."""
    mean = scores[np.isfinite(scores)].mean() if np.isfinite(scores).any() else 0.0
    return scores / mean if mean > 0 else scores


def _by_channel(score: Tensor) -> Tensor:
    """The scores of single channels, or the norms of their rows; minus infinity stays what it is."""
    if score.dim() == 1:
        return double(score)
    rows = double(score).reshape(len(score), -1 if len(score) else 1)
    return rows.norm(dim=1).masked_fill(rows.isneginf().any(1), -math.inf)


def _squares(sizes: Tensor) -> Tensor:
    return sizes.square().masked_fill(sizes.isneginf(), -math.inf)


def _roots(squares: Tensor) -> Tensor:
    return squares.sqrt().masked_fill(squares.isneginf(), -math.inf)


def _together(sizes: Sequence[Tensor]) -> np.ndarray:
    """The scores of channels of which several parameters have a part."""
    if len(sizes) == 1:
        return sizes[0].cpu().numpy()
    rows = torch.stack(list(sizes))
    return rows.norm(dim=0).masked_fill(rows.isneginf().any(0), -math.inf).cpu().numpy()
