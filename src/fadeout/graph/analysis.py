"""How channels flow through a traced network: which are constant, and which somebody needs.

A *channel* is a slice of an activation along one axis: a feature map of a convolution, a feature of a
linear layer, a head of an attention. For each value in the graph a :class:`.Flow` says along which axis its
channels lie, which of them are constant (found in a pass from the inputs to the outputs) and which are
needed by anybody (found in passes from the outputs back, repeated until nothing changes). A channel that
nobody needs can go. What each operator does to channels is said in :mod:`.rules`; an operator without
a rule needs all that it is given, which is never wrong, only less small.
"""

import itertools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, fx

from fadeout.graph.network import Network

if TYPE_CHECKING:  # rules are written in terms of analyses
    from fadeout.graph.rules.base import Rule


@dataclass
class Flow:
    """What is known of the channels of one value in the graph."""

    axis: int
    """The dimension along which the channels lie."""
    constant: Tensor
    """The value that a channel has everywhere and for every input; NaN where it varies."""
    needed: Tensor
    """Which channels must be there."""
    order: Tensor | None = None
    """Their indices, where they lie in another order than before."""

    @property
    def width(self) -> int:
        return len(self.constant)

    @property
    def kept(self) -> Tensor:
        """The indices of the needed channels."""
        return self.needed.nonzero().squeeze(1) if self.order is None else self.order

    @property
    def changes(self) -> bool:
        """Whether some channels go, or lie elsewhere."""
        return self.order is not None or not bool(self.needed.all())


@dataclass(eq=False)
class Analysis:
    """Constants and needs of every value in a network, and how the rules add to them.

    The options are those of :func:`analyse`.
    """

    network: Network
    for_inference: bool = False
    couple: bool = False
    keep_forward: bool = False
    dead: Mapping[str, Tensor] | None = None
    flows: dict[fx.Node, Flow] = field(default_factory=dict)
    changed: bool = False
    """Whether any need has grown since this was last set to false."""
    emptied: bool = False
    """Whether a layer would have lost all its channels."""
    _computed: dict[Any, Any] = field(default_factory=dict)

    @property
    def rules(self) -> "dict[fx.Node, Rule]":
        return self.network.rules

    def module(self, node: fx.Node) -> Any:
        """The module that a node calls; None where it calls a function."""
        return self.network.module(node)

    def shape(self, node: fx.Node) -> torch.Size:
        return self.network.shapes[node]

    def once(self, key: Any, compute: Callable[[], Any]) -> Any:
        """Compute something once, and keep it."""
        if key not in self._computed:
            self._computed[key] = compute()
        return self._computed[key]

    def follow(self, node: fx.Node, axis: int, constant: Tensor) -> None:
        """Follow the channels of a node's value along an axis; where it is no tensor, its heads."""
        if node in self.network.shapes:
            axis %= len(self.shape(node))
            assert self.shape(node)[axis] == len(constant), f"{node}: {self.shape(node)} along {axis}"
        gone = None if self.dead is None or node.op == "call_module" else self.dead.get(node.name)
        constant = constant if gone is None else constant.masked_fill(gone, 0.0)
        self.flows[node] = Flow(axis, constant.double(), torch.zeros(len(constant), dtype=torch.bool))

    def grow(self, node: fx.Node, needed: Tensor) -> None:
        """Some channels of a value are needed."""
        flow = self.flows.get(node)
        if flow is not None and bool((needed & ~flow.needed).any()):
            flow.needed |= needed
            self.changed = True

    def need_all(self, node: fx.Node) -> None:
        """All channels of a value are needed."""
        flow = self.flows.get(node)
        if flow is not None and not bool(flow.needed.all()):
            self.grow(node, torch.ones_like(flow.needed))

    def tie(self, one: fx.Node, other: fx.Node) -> None:
        """Two values keep the same channels."""
        first, second = self.flows.get(one), self.flows.get(other)
        if first is None or second is None:
            self.need_all(one)
            self.need_all(other)
        elif one is not other:
            self.grow(one, second.needed)
            self.grow(other, first.needed)

    def link(self, one: fx.Node, theirs: np.ndarray, node: fx.Node, ours: np.ndarray) -> None:
        """Channels of two values that belong together are needed together."""
        if theirs is ours:
            return self.tie(one, node)
        before, after = self.flows.get(one), self.flows[node]
        needed = torch.zeros_like(after.needed)
        needed[torch.from_numpy(ours if before is None else ours[before.needed.numpy()[theirs]])] = True
        self.grow(node, needed)
        if before is not None:
            needed = torch.zeros_like(before.needed)
            needed[torch.from_numpy(theirs[after.needed.numpy()[ours]])] = True
            self.grow(one, needed)

    def tie_sites(self, node: fx.Node) -> None:
        """A module that is used twice has one set of channels."""
        for site in self.network.sites(node):
            self.tie(site, node)


def analyse(
    network: Network,
    *,
    for_inference: bool = False,
    couple: bool = False,
    keep_forward: bool = False,
    dead: Mapping[str, Tensor] | None = None,
    whole: bool = False,
) -> Analysis:
    """Find the constants and needs of every value in a network.

    Args:
        network: the traced network.
        for_inference: take constants out of batch-norm's running statistics too, which holds only in
            evaluation mode.
        couple: both sides of an addition keep the same channels.
        keep_forward: only what the user's own ``forward`` can run: nothing is gathered, no number that is
            written in it changes.
        dead: channels (by :meth:`.Network.key`) to be taken as removed, while all other weights count as
            alive, whatever they hold. This is how a choice of channels is weighed before it is made.
        whole: everything is needed.
    """
    a = Analysis(network, for_inference, couple or keep_forward, keep_forward, dead)
    # its vectors are on the CPU, whatever the default device; a mode for nothing would slow every call down
    with nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu"):
        _find_constants_and_needs(a, whole)
    return a


def _find_constants_and_needs(a: Analysis, whole: bool) -> None:
    for node, rule in a.rules.items():
        rule.constants(node, a)
        if node in a.network.overwritten:
            a.flows.pop(node, None)
    for node in list(a.flows):
        if whole or not node.users:  # what nobody reads is kept somewhere: the user may read it there
            a.need_all(node)
    there = list(a.rules.items())
    ways = itertools.cycle((there[::-1], there))
    a.changed = True
    while a.changed:  # back and forth: needs travel both ways, and so arrive sooner
        a.changed = False
        for node, rule in next(ways):
            rule.needs(node, a)
        if not a.changed:
            _keep_one(a)


def _keep_one(a: Analysis) -> None:
    """No layer vanishes altogether: modules without channels cannot run.

    From the end on, so that what the last of them needs may do for those before it. Values that keep what
    their source keeps are left to it.
    """
    for node, rule in reversed(a.rules.items()):
        flow = a.flows.get(node)
        if flow is not None and not flow.needed.any() and not rule.keeps_alike:
            a.grow(node, torch.arange(flow.width) == 0)
            a.emptied = True
        if a.changed:
            rule.needs(node, a)
