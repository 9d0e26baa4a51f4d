"""How many parameters or operations are left when some channels are dead, quickly enough for every step.

:func:`fadeout.graph.analysis.analyse` says which channels stay for any choice of dead ones, but takes tens of
milliseconds. In nearly every network :mod:`.channel_deps` say the same in microseconds; elsewhere the
analysis itself counts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import fx

from fadeout.graph.analysis import analyse
from fadeout.graph.rules.base import Analysis, Network, Of, Term
from fadeout.graph.rules.calls import source
from fadeout.structures.channel_deps import Alive, Dependencies, find_dependencies

__all__ = ["Cost", "Of", "find_cost"]


@dataclass
class Cost:
    """What a network costs, whichever channels are alive."""

    network: Network
    couple: bool
    widths: dict[str, int]
    """The number of channels of each layer that may lose some, by module name."""
    terms: list[Term]
    biased: list[fx.Node]
    """The layers that get a bias, for a constant, when channels of their input go."""
    sizes: dict[fx.Node, int]
    """How many channels the values in the terms have."""
    dependencies: Dependencies | None
    """What the channels of these values depend on; None where only an analysis can say."""
    fixed: int = 0
    """What never goes."""

    def __post_init__(self):
        self.total = self.fixed + self._sum(self.sizes)

    def left(self, alive: Alive) -> int:
        """What is left when these channels of each layer are alive."""
        if self.dependencies is not None and all(mask.any() for mask in alive.values()):
            return self.fixed + self._sum(self.dependencies.counts(alive))
        flows = _analyse(self.network, alive, self.couple).flows
        sizes = {node: int(flows[node].needed.sum()) for node in self.sizes}
        grouped = [(t, flows[t.nodes[0]].needed.view(t.groups, -1)) for t in self.terms if t.groups > 1]
        return self.fixed + self._sum(sizes, {t: int(needed.any(1).sum()) for t, needed in grouped})

    def at_most_left(self, channels: int) -> int:
        """What is left at most when so many channels of each layer are alive, whichever they are."""
        least = {name: min(channels, width) for name, width in self.widths.items()}
        if self.dependencies is not None and channels > 0:
            return self.fixed + self._sum(self.dependencies.most(least))
        random = np.random.default_rng(0)  # no proof, but the worst of a few
        choices = [
            {n: random.permutation(width) < least[n] for n, width in self.widths.items()}
            for _ in range(_RANDOM_CHOICES if channels > 0 else 1)
        ]
        return max(map(self.left, choices))

    def _sum(self, sizes: Mapping[fx.Node, int], groups: Mapping[Term, int] | None = None) -> int:
        groups = groups or {}  # how many of a term's groups are left, where that is less than all
        born = (sizes[node] for node in self.biased if sizes[source(node)] < self.sizes[source(node)])
        return sum(born) + sum(
            t.factor * math.prod(sizes[node] for node in t.nodes) // groups.get(t, t.groups)
            for t in self.terms
        )


_RANDOM_CHOICES = 8


def find_cost(
    network: Network, widths: Mapping[str, int], *, of: Of = "parameters", couple: bool = False
) -> Cost:
    """Find what a network costs as a function of the channels that are alive.

    Args:
        network: the traced network.
        widths: the number of channels of each layer that may lose some, by module name.
        of: ``"parameters"``, or ``"operations"`` (multiply-accumulates of convolutions and linear layers).
        couple: both sides of an addition keep the same channels.
    """

    def analyse_alive(alive: Alive) -> Analysis:
        return _analyse(network, alive, couple)

    whole = analyse_alive({name: np.ones(width, bool) for name, width in widths.items()})
    terms = _terms(whole, of)
    biased = []
    if of == "parameters":
        biased = _newly_biased(analyse_alive({name: np.arange(width) == 0 for name, width in widths.items()}))
    nodes = [*(node for term in terms for node in term.nodes), *map(source, biased)]
    sizes = {node: whole.flows[node].width for node in nodes}
    grouped = any(rule.is_grouped(network.module(node)) for node, rule in network.rules.items())
    dependencies = None if grouped else find_dependencies(sizes, widths, analyse_alive)
    cost = Cost(network, couple, dict(widths), terms, biased, sizes, dependencies)
    parameters = sum(p.numel() for p in network.model.parameters()) if of == "parameters" else 0
    return replace(cost, fixed=max(parameters - cost.total, 0))


def _analyse(network: Network, alive: Alive, couple: bool) -> Analysis:
    dead = {name: torch.from_numpy(~mask) for name, mask in alive.items()}
    return analyse(network, dead=dead, couple=couple, keep_forward=not network.rewritable)


def _terms(whole: Analysis, of: Of) -> list[Term]:
    terms, done = [], set[int]()
    for node, rule in whole.rules.items():
        module = whole.module(node)
        if module is None or node not in whole.flows or (of == "parameters" and id(module) in done):
            continue
        done.add(id(module))
        terms += rule.terms(node, whole, of)
    return terms


def _newly_biased(narrow: Analysis) -> list[fx.Node]:
    """The layers into whose bias a constant is folded, and that had none."""
    found = []
    for node, rule in narrow.rules.items():
        if node.op == "call_module" and rule.gains_bias(narrow.module(node)):
            before = narrow.flows.get(source(node))
            if before is not None and bool(before.constant[~before.needed].nan_to_num().any()):
                found.append(node)
    return found
