"""Channels of different layers that go only together: they are one candidate.

A depthwise convolution keeps as many channels as it is given, and behind it a norm makes something of a
channel that is dead in front: in training its shift, in evaluation what its running statistics say. So the
one channel is gone only when the other is dead too.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import fx

from fadeout.graph.analysis import analyse
from fadeout.graph.rules.base import Network
from fadeout.graph.rules.calls import source
from fadeout.graph.rules.layers import Weighted
from fadeout.selection.search import lowest
from fadeout.structures.channel_deps import Alive, belong_together, smallest_linked
from fadeout.structures.channel_scores import untied


class Ties:
    """Which channels are one candidate.

    Args:
        widths: the number of channels of each layer that may lose some, by module name.
        candidate: for each channel of all layers the number of its candidate.

    >>> ties = Ties({"before": 2, "after": 2, "alone": 2}, np.array([0, 1, 0, 1, 2, 3]))
    >>> ties.rank([np.array([1.0, 4.0]), np.array([2.0, 2.0]), np.array([1.8, 1.2])])
    array([2., 5., 3., 0.])
    >>> ties.by_layer(np.array([False, True, True, True]))
    {'before': array([False,  True]), 'after': array([False,  True]), 'alone': array([ True,  True])}
    """

    def __init__(self, widths: Mapping[str, int], candidate: np.ndarray):
        self._widths, self._candidate = widths, candidate
        self._ends = np.cumsum([*widths.values()])[:-1]
        self._sizes = np.bincount(candidate)  # how many channels each candidate has

    @property
    def count(self) -> int:
        """How many candidates there are."""
        return len(self._sizes)

    def by_layer(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """For each channel of each layer what its candidate has."""
        return dict(zip(self._widths, np.split(values[self._candidate], self._ends), strict=True))

    def settle(self, alive: Alive) -> dict[str, np.ndarray]:
        """A candidate stays as long as any of its channels does."""
        stays = np.zeros(self.count, bool)
        stays[self._candidate[np.concatenate([alive[name] for name in self._widths])]] = True
        return self.by_layer(stays)

    def every_second(self) -> dict[str, np.ndarray]:
        """Every second channel of each layer, and what is tied to it."""
        first = np.unique(self._candidate, return_index=True)[1]
        number = np.concatenate([np.arange(width) for width in self._widths.values()])
        return self.by_layer(number[first] % 2 == 1)

    def rank(self, scores: Sequence[np.ndarray]) -> np.ndarray:
        """The ranks of candidates, by their channels' mean scores; minus infinity stays what it is."""
        means = np.bincount(self._candidate, np.concatenate(scores)) / self._sizes
        ranks = np.full(self.count, -np.inf)
        np.maximum.at(ranks, self._candidate, np.concatenate(untied([*self.by_layer(means).values()])))
        return ranks

    def free(self, ranks: np.ndarray, min_channels: int) -> np.ndarray:
        """The candidates that are not among the highest so many of any layer, which must stay."""
        free = np.ones(self.count, bool)
        for candidates in np.split(self._candidate, self._ends):
            scores = torch.from_numpy(ranks[candidates])
            stays = ~lowest([scores], max(len(scores) - min_channels, 0))[0].numpy()
            free[candidates[stays]] = False
        return free

    def least(self, min_channels: int) -> dict[str, int]:
        """How many channels of each layer :meth:`free` keeps at most.

        Where a layer shares candidates with several others, those that each of these keeps may differ.
        """
        own = np.split(self._candidate, self._ends)
        most = np.array([np.bincount(each).max() for each in own])  # channels of one candidate
        numbers = np.zeros(len(own), int)
        for part in {each.tobytes(): each for each in map(np.unique, own)}.values():
            shared = np.isin(self._candidate, part)
            numbers += np.minimum(np.add.reduceat(shared, [0, *self._ends]), min_channels * most)
        each = np.minimum(numbers, [*self._widths.values()]).tolist()
        return dict(zip(self._widths, each, strict=True))


def find_ties(network: Network, widths: Mapping[str, int]) -> Ties:
    """Find the channels that a depthwise convolution ties together.

    Args:
        network: the traced network.
        widths: the number of channels of each layer that may lose some, by module name.
    """
    rules, count, nothing = network.rules, sum(widths.values()), np.zeros(0, int)
    depthwise = [node for node in rules if rules[node].is_depthwise(network.module(node))]
    if not depthwise:
        return Ties(widths, np.arange(count))

    def find_labels() -> dict[fx.Node, np.ndarray]:
        whole = analyse(network, dead={}, keep_forward=not network.rewritable)

        def passes_on(node: fx.Node) -> bool:
            mixes = isinstance(rules[node], Weighted) and node not in depthwise
            joins = rules[node].joins and len(rules[node].links(node, whole)) > 1
            return not (mixes or joins or rules[node].normalizes)

        return belong_together(whole, passes_on)

    labels = network.once(find_ties, find_labels)
    filtered = np.unique(np.concatenate([nothing, *(labels[node] for node in depthwise if node in labels)]))
    nodes = {network.key(node): node for node in labels}
    first, one, other = 0, [nothing], [nothing]
    for name, width in widths.items():
        values = [nodes[name]] if name in nodes else []
        if values and rules[values[0]].normalizes:
            values.append(source(values[0]))
        for value in values:
            own = labels.get(value, nothing)
            there = np.isin(own, filtered)
            one.append(first + np.flatnonzero(there))
            other.append(count + np.searchsorted(filtered, own[there]))
        first += width
    linked = smallest_linked(count + len(filtered), np.concatenate(one), np.concatenate(other))
    return Ties(widths, np.unique(linked[:count], return_inverse=True)[1])
