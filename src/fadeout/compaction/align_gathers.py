"""The order of channels: what lies at the same place on both sides of a gather need not be moved."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, fx

from fadeout.graph.analysis import Analysis

Edge = tuple[fx.Node, fx.Node]


def align(analysis: Analysis, gathers: Iterable[Edge]) -> None:
    """Give values an order of channels in which gathers between them move nothing, where they can.

    Of two values that keep equally many channels, those that both keep get the same places, and the others
    of the one take the places of those that only the other has. Layers have their weights in that order, and
    what is left of the gather multiplies each channel by one or zero: memory is read as it lies, and an
    engine that has a layout of its own stays in it.

    Args:
        analysis: what is needed; its flows get the orders.
        gathers: from which value to which channels are gathered.
    """
    flows, edges = analysis.flows, list(gathers)
    groups = _groups(analysis, set(edges))
    known = {id(groups[node]) for node in groups if not _may_move(node, analysis)}
    while edges:
        numbers = [sum(id(groups[one]) in known for one in edge) for edge in edges]
        edge = edges.pop(numbers.index(1) if 1 in numbers else 0)
        first, second = edge if id(groups[edge[0]]) in known else edge[::-1]
        fits = len(flows[first].kept) == len(flows[second].kept)
        if fits and id(groups[second]) not in known:
            order = _like(flows[first].kept, flows[second].kept)
            known |= {id(groups[first]), id(groups[second])}
            for node in groups[second]:
                flows[node].order = order


def _like(places: Tensor, channels: Tensor) -> Tensor:
    """Channels, each at the place that it has among others, or else at one that is left.

    >>> _like(torch.tensor([1, 4, 6]), torch.tensor([0, 2, 4]))
    tensor([0, 4, 2])
    """
    order = places.clone()
    order[~torch.isin(places, channels)] = channels[~torch.isin(channels, places)]
    return order


def _groups(analysis: Analysis, gathers: set[Edge]) -> dict[fx.Node, set[fx.Node]]:
    """The values whose channels lie in one order, since nothing is gathered between them."""
    groups = {node: {node} for node in analysis.flows}
    for node in analysis.flows:
        for side, theirs, ours in analysis.rules[node].links(node, analysis):
            alike = side in groups and (side, node) not in gathers and np.array_equal(theirs, ours)
            if alike and groups[side] is not groups[node]:
                groups[side] |= groups[node]
                groups |= dict.fromkeys(groups[node], groups[side])
    return groups


def _may_move(node: fx.Node, analysis: Analysis) -> bool:
    """Whether nobody who makes or reads a value minds the order of its channels."""
    return all(
        one in analysis.flows
        and analysis.rules[one].any_order
        and getattr(analysis.module(one), "groups", 1) == 1
        and (one.op != "call_module" or len(analysis.network.sites(one)) == 1)
        for one in (node, *node.users)
    )
