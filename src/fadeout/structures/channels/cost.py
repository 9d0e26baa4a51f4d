"""How many parameters or operations are left when some channels are dead, quickly enough for every step.

:func:`fadeout.graph.analysis.analyse` says which channels stay for any choice of dead ones, but takes tens of
milliseconds. In nearly every network :mod:`.dependencies` say the same in microseconds; elsewhere the
analysis itself counts.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import fx

from fadeout.graph.analysis import Analysis, analyse
from fadeout.graph.network import Network
from fadeout.graph.rules.base import Of, Term
from fadeout.graph.rules.calls import source
from fadeout.graph.side_effects import undisturbed
from fadeout.structures.channels.dependencies import Alive, Dependencies, all_alive, find_dependencies
from fadeout.torch_bridge.matrix_products import counting_products

__all__ = ["Cost", "Of", "find_cost", "first_true"]


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
    of: Of = "parameters"
    fixed: int = 0
    """What never goes."""

    def __post_init__(self):
        self.total = self.fixed + self._sum(self.sizes, [])

    def left(self, alive: Alive) -> float:
        """What is left when these channels of each layer are alive."""
        counts = self._quick(alive)
        if counts is not None:
            return self.fixed + self._sum(counts, self._born(counts))
        analysis = analyse_alive(self.network, alive, self.couple)
        needed = {node: analysis.flows[node].needed for node in self.sizes}
        groups = {
            t: int(needed[t.nodes[0]].view(t.groups, -1).any(1).sum()) for t in self.terms if t.groups > 1
        }
        born = _newly_biased(analysis) if self.of == "parameters" else []
        return self.fixed + self._sum(_counts(needed), born, groups)

    def kept(self, alive: Alive) -> dict[fx.Node, int]:
        """How many channels the values in the terms keep."""
        counts = self._quick(alive)
        if counts is not None:
            return counts
        flows = analyse_alive(self.network, alive, self.couple).flows
        return _counts({node: flows[node].needed for node in self.sizes})

    def of_one(self, name: str) -> float:
        """What goes with one channel of a layer while all others stay, in the mean of half of them."""
        alive = all_alive(self.widths)
        alive[name][: max(self.widths[name] // 2, 1)] = False  # several, since groups go together
        return (self.total - self.left(alive)) / int((~alive[name]).sum())

    def _quick(self, alive: Alive) -> dict[fx.Node, int] | None:
        if self.dependencies is None or not all(mask.any() for mask in alive.values()):
            return None
        return self.dependencies.counts(alive)

    def _born(self, sizes: Mapping[fx.Node, int]) -> list[fx.Node]:
        """The layers that get a bias."""
        return [node for node in self.biased if sizes[source(node)] < self.sizes[source(node)]]

    def at_most_left(self, channels: int | Mapping[str, int]) -> float:
        """What is left at most when so many channels of each layer are alive, whichever they are."""
        given = dict.fromkeys(self.widths, channels) if isinstance(channels, int) else channels
        least = {name: min(given[name], width) for name, width in self.widths.items()}
        some = all(least.values())
        most = 0.0
        if self.dependencies is not None and some:
            sizes = self.dependencies.most(least)
            most = self.fixed + self._sum(sizes, self._born(sizes))
            if not self.dependencies.pieces:
                return most
        random = np.random.default_rng(0)  # no proof, but the worst of a few
        choices = [
            {n: random.permutation(width) < least[n] for n, width in self.widths.items()}
            for _ in range(_RANDOM_CHOICES if some else 1)
        ]
        return max(most, *map(self.left, choices))

    def _sum(
        self, sizes: Mapping[fx.Node, int], born: Iterable[fx.Node], groups: Mapping[Term, int] | None = None
    ) -> float:
        groups = groups or {}  # how many of a term's groups are left, where that is less than all
        return sum(sizes[node] for node in born) + sum(
            t.factor * math.prod(sizes[node] for node in t.nodes) // groups.get(t, t.groups)
            for t in self.terms
        )


def _counts(needed: Mapping[fx.Node, torch.Tensor]) -> dict[fx.Node, int]:
    return {node: int(which.sum()) for node, which in needed.items()}


_RANDOM_CHOICES = 8


def find_cost(
    network: Network, widths: Mapping[str, int], *, of: Of = "parameters", couple: bool = False
) -> Cost:
    """Find what a network costs as a function of the channels that are alive.

    Args:
        network: the traced network.
        widths: the number of channels of each layer that may lose some, by module name.
        of: ``"parameters"``, or ``"operations"`` (multiply-accumulates on the example).
        couple: both sides of an addition keep the same channels.
    """

    def analysed(alive: Alive) -> Analysis:
        return analyse_alive(network, alive, couple)

    whole = analysed(all_alive(widths))
    terms = _terms(whole, of)
    biased, sometimes = [], []
    if of == "parameters":
        narrow = {name: np.arange(width) == 0 for name, width in widths.items()}
        biased = _newly_biased(analysed(narrow))
        for first in (0, 1):  # where a layer is narrow, and those around it are not
            every_second = {
                name: mask if number % 2 == first else np.ones_like(mask)
                for number, (name, mask) in enumerate(narrow.items())
            }
            sometimes += [node for node in _newly_biased(analysed(every_second)) if node not in biased]
    nodes = [*(node for term in terms for node in term.nodes), *map(source, biased)]
    sizes = {node: whole.flows[node].width for node in nodes}
    dependencies = None if sometimes else dependencies_of(network, sizes, widths, couple)
    cost = Cost(network, couple, dict(widths), terms, biased, sizes, dependencies, of)
    count = _operations if of == "operations" else _parameters
    return replace(cost, fixed=max(count(network) - cost.total, 0))


def _parameters(network: Network) -> int:
    return sum(p.numel() for p in network.model.parameters())


def _operations(network: Network) -> int:
    """The multiply-accumulates of the whole network, those that no rule knows of included."""
    with undisturbed(network.model), counting_products() as so_far:
        network.example.run(network.model)
    return so_far()


def dependencies_of(
    network: Network, nodes: Iterable[fx.Node], widths: Mapping[str, int], couple: bool
) -> Dependencies | None:
    """What the channels of these values depend on; None where only an analysis can say."""
    if any(rule.is_grouped(network.module(node)) for node, rule in network.rules.items()):
        return None
    return find_dependencies(nodes, widths, lambda alive: analyse_alive(network, alive, couple))


def analyse_alive(network: Network, alive: Alive, couple: bool) -> Analysis:
    """The network with these channels alive."""
    dead = {name: torch.from_numpy(~mask) for name, mask in alive.items()}
    return analyse(network, dead=dead, couple=couple, keep_forward=not network.rewritable)


def _terms(whole: Analysis, of: Of) -> list[Term]:
    terms, done = [], set[int]()
    for node, rule in whole.rules.items():
        module = whole.module(node)
        owns = module is not None and id(module) not in done  # its parameters: they count once
        if node not in whole.flows or (of == "parameters" and not owns):
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


def first_true(reached: Callable[[int], bool], count: int, guess: int) -> int:
    """The smallest number from 0 to ``count`` for which a monotone condition holds, sought from a guess.

    >>> first_true(lambda number: number >= 7, 10, guess=3)
    7
    """
    low, high, step = -1, count, 1  # the condition fails at low (or low is -1) and holds at high
    guess = min(max(guess, 0), count)
    while low + 1 < high:
        if reached(guess):
            high, guess = guess, guess - step
        else:
            low, guess = guess, guess + step
        step *= 2
        if not low < guess < high:
            guess = (low + high) // 2
    return high
