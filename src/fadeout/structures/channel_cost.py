"""How many parameters or operations are left when some channels are dead, quickly enough for every step.

:class:`~.analysis.Analysis` says which channels stay for any choice of dead ones, but takes tens of
milliseconds. In nearly every network :mod:`.channel_deps` say the same in microseconds; elsewhere the
analysis itself counts.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx

from fadeout.graph.analysis import Analysis, Network
from fadeout.graph.rules.base import Rule, source
from fadeout.graph.rules.heads import HeadedAttention, inputs_of, output_of
from fadeout.graph.rules.layers import BatchNorm, Embedding, TransposedConvolution, Weighted
from fadeout.graph.rules.pointwise import PReLU
from fadeout.structures.channel_deps import Alive, find_labels

Of = Literal["parameters", "operations"]


class Term(NamedTuple):
    """``factor`` times the product of the numbers of channels that these values keep.

    Of a convolution in several groups, which keep equal numbers, only those of one group meet.
    """

    factor: int
    nodes: tuple[fx.Node, ...]
    groups: int = 1


class Tally:
    """Counts what is left of a network.

    Args:
        network: the traced network.
        widths: the number of channels of each layer that may lose some, by module name.
        of: ``"parameters"``, or ``"operations"`` (multiply-accumulates of convolutions and linear layers).
        couple: both sides of an addition keep the same channels.
    """

    def __init__(
        self, network: Network, widths: Mapping[str, int], *, of: Of = "parameters", couple: bool = False
    ):
        self._network, self._widths, self._couple = network, dict(widths), couple
        whole = self._analyse({name: np.ones(width, bool) for name, width in widths.items()})
        self._terms = _terms(whole, of)
        self._biased = self._newly_biased() if of == "parameters" else []
        nodes = [*(node for term in self._terms for node in term.nodes), *map(source, self._biased)]
        self._sizes = {node: whole.flows[node].width for node in nodes}
        parameters = sum(p.numel() for p in network.model.parameters()) if of == "parameters" else 0
        self._fixed = max(parameters - self._sum(self._sizes), 0)
        grouped = any(_is_grouped(node, network) for node in network.graph.nodes)
        self._labels = None if grouped else find_labels(self._sizes, self._widths, self._analyse)
        self.total = self._fixed + self._sum(self._sizes)

    def left(self, alive: Alive) -> int:
        """What is left when these channels of each layer are alive."""
        if self._labels is not None and all(mask.any() for mask in alive.values()):
            return self._fixed + self._sum(self._labels.counts(alive))
        flows = self._analyse(alive).flows
        sizes = {node: int(flows[node].needed.sum()) for node in self._sizes}
        groups = {t: _groups_left(flows[t.nodes[0]].needed, t.groups) for t in self._terms if t.groups > 1}
        return self._fixed + self._sum(sizes, groups)

    def at_most_left(self, channels: int) -> int:
        """What is left at most when so many channels of each layer are alive, whichever they are."""
        least = {name: min(channels, width) for name, width in self._widths.items()}
        if self._labels is not None and channels > 0:
            return self._fixed + self._sum(self._labels.most(least))
        random = np.random.default_rng(0)  # no proof, but the worst of a few
        choices = [
            {n: random.permutation(width) < least[n] for n, width in self._widths.items()}
            for _ in range(_RANDOM_CHOICES if channels > 0 else 1)
        ]
        return max(map(self.left, choices))

    def _sum(self, sizes: Mapping[fx.Node, int], groups: Mapping[Term, int] | None = None) -> int:
        groups = groups or {}
        born = (sizes[node] for node in self._biased if sizes[source(node)] < self._sizes[source(node)])
        return sum(born) + sum(
            t.factor * math.prod(sizes[node] for node in t.nodes) // groups.get(t, t.groups)
            for t in self._terms
        )

    def _analyse(self, alive: Alive) -> Analysis:
        dead = {name: torch.from_numpy(~mask) for name, mask in alive.items()}
        with torch.device("cpu"):  # where its vectors lie, whatever the default device
            return Analysis(self._network, dead=dead, couple=self._couple)

    def _newly_biased(self) -> list[fx.Node]:
        """The layers that get a bias, for a constant, when channels of their input go."""
        flows = self._analyse({name: np.arange(width) == 0 for name, width in self._widths.items()}).flows
        found = []
        for node, rule in self._network.rules.items():
            before = flows.get(source(node)) if isinstance(rule, Weighted) else None
            if before is not None and self._network.module(node).bias is None:
                found += [node] if bool(before.constant[~before.needed].nan_to_num().any()) else []
        return found


_RANDOM_CHOICES = 8


def _groups_left(needed: Tensor, groups: int) -> int:
    return int(needed.view(groups, -1).any(1).sum())


def _is_grouped(node: fx.Node, network: Network) -> bool:
    """A convolution in groups of several channels, whose groups must keep equal numbers."""
    module: Any = network.module(node) if node.op == "call_module" else None
    groups = getattr(module, "groups", 1) if isinstance(network.rules[node], Weighted) else 1
    return groups > 1 and groups != module.in_channels


def _terms(whole: Analysis, of: Of) -> list[Term]:
    terms, done = [], set[int]()
    for node, rule in whole.rules.items():
        if node.op != "call_module" or node not in whole.flows:
            continue
        module: Any = whole.network.module(node)
        if of == "parameters" and id(module) in done:
            continue
        done.add(id(module))
        if isinstance(rule, HeadedAttention):
            terms += _of_attention(node, whole, of)
        elif isinstance(rule, Weighted):
            parts, grouped = rule.parts(module), _is_grouped(node, whole.network)
            inputs = source(node) in whole.flows and (grouped or rule.groups(module) == 1)
            each = parts.shape[2] if inputs else parts.shape[1] * parts.shape[2]
            if of == "operations":
                shape = whole.shape(source(node) if isinstance(rule, TransposedConvolution) else node)
                axis = rule.axis(module, shape)
                each *= shape.numel() // shape[axis] // (shape[0] if axis else 1)  # for one of a batch
            nodes = (node, source(node)) if inputs else (node,)
            terms.append(Term(each, nodes, module.groups if inputs and grouped else 1))
        if of == "parameters":
            terms += [Term(size, (node,)) for size in _per_channel(rule, module)]
    return terms


def _of_attention(node: fx.Node, whole: Analysis, of: Of) -> list[Term]:
    """The projections of an attention: their inputs and outputs may go; heads are no candidates."""
    module: Any = whole.network.module(node)
    width, output = module.out_proj.in_features, output_of(node, whole.network)
    ends = [(one, width) for one in inputs_of(node)] + ([] if output is None else [(output, width)])
    if of == "parameters" and output is not None and module.out_proj.bias is not None:
        ends.append((output, 1))
    terms = []
    for end, factor in ends:
        shape, flow = whole.shape(end), whole.flows.get(end)
        if flow is None or flow.axis != len(shape) - 1:
            continue
        positions = shape[-2] if len(shape) < 3 or module.batch_first else shape[0]
        terms.append(Term(factor * (positions if of == "operations" else 1), (end,)))
    return terms


def _per_channel(rule: Rule, module: Any) -> list[int]:
    """Parameters that a module has for each channel of its output, besides a weight matrix."""
    if isinstance(rule, Weighted):
        return [1] if module.bias is not None else []
    if isinstance(rule, BatchNorm):
        return [1 for parameter in (module.weight, module.bias) if parameter is not None]
    if isinstance(rule, PReLU):
        return [1] if module.num_parameters > 1 else []
    return [module.num_embeddings] if isinstance(rule, Embedding) else []
