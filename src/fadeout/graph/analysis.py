"""How channels flow through a traced network: which are constant, and which somebody needs.

A *channel* is a slice of an activation along one axis: a feature map of a convolution, a feature of a
linear layer, a head of an attention. For each value in the graph a :class:`.Flow` says along which axis its
channels lie, which of them are constant (found in a pass from the inputs to the outputs) and which are
needed by anybody (found in passes from the outputs back, repeated until nothing changes). A channel that
nobody needs can go. What each operator does to channels is said in :mod:`.rules`; an operator without
a rule needs all that it is given, which is never wrong, only less small.
"""

import itertools
from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch import Tensor

from fadeout.graph.rules.base import Analysis, Network


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
