"""Channels as what is pruned: what a user asks for, and how a network is found to have it."""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from torch import nn
from torch.optim import Optimizer

from fadeout import criteria
from fadeout._arguments import ExampleInput, Leaves, Only, checked
from fadeout.criteria import Criterion
from fadeout.engines import Engine
from fadeout.fades import Decay, Fade
from fadeout.structures.base import Structure
from fadeout.structures.channels.bound import BoundChannels, trace_for
from fadeout.structures.channels.candidates import Layer, find_layers, warn_of_training
from fadeout.structures.channels.rounding import Multiple
from fadeout.structures.channels.scores import TAYLOR
from fadeout.torch_bridge.parameters import (
    Prunable,
    check_kinds,
    chosen_by,
    clean,
    group_of,
    has_two_dimensions,
    held_by,
    named,
)
from fadeout.torch_bridge.sharding import Layout

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
    ) -> BoundChannels:
        """Trace the network, and find the channels that can go."""
        network = trace_for(self, model)
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
