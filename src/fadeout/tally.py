"""How many parameters or operations are left when some channels are dead, quickly enough for every step.

:class:`fadeout.graph.Analysis` says which channels stay for any choice of dead ones, but takes milliseconds.
In nearly every network the channels that a value keeps are those that are alive in one batch-norm, or in any
of several (after an addition), or these one after the other (after a concatenation). Analyses of a few
choices show whether that is so; then counting is arithmetic. Elsewhere the analysis itself counts.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx

from fadeout.graph import Analysis, Network
from fadeout.rules.base import Rule, source
from fadeout.rules.layers import BatchNorm, Embedding, TransposedConvolution, Weighted
from fadeout.rules.pointwise import PReLU
from fadeout.rules.shapes import Concatenated

Of = Literal["parameters", "operations"]

# How the channels of a value depend on those of the layers, piece by piece: alive in any of these layers,
# each so many times over; no layers at all, for channels that always stay.
Label = tuple[tuple[tuple[str, ...], int], ...]


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
        self._labels = self._find_labels()
        self.total = self._fixed + self._sum(self._sizes)

    def left(self, alive: Mapping[str, np.ndarray]) -> int:
        """What is left when these channels of each layer are alive."""
        if self._labels is not None and all(mask.any() for mask in alive.values()):
            return self._count(
                lambda layers: int(np.logical_or.reduce([alive[name] for name in layers]).sum())
            )
        flows = self._analyse(alive).flows
        sizes = {node: int(flows[node].needed.sum()) for node in self._sizes}
        groups = {t: _groups_left(flows[t.nodes[0]].needed, t.groups) for t in self._terms if t.groups > 1}
        return self._fixed + self._sum(sizes, groups)

    def at_most_left(self, channels: int) -> int:
        """What is left when so many channels of each layer are alive, whichever they are."""
        least = {name: min(channels, width) for name, width in self._widths.items()}
        if self._labels is not None and channels > 0:
            return self._count(
                lambda layers: min(sum(least[name] for name in layers), self._widths[layers[0]])
            )
        random = np.random.default_rng(0)  # no proof, but the worst of a few
        choices = [
            {n: random.permutation(width) < least[n] for n, width in self._widths.items()}
            for _ in range(_RANDOM_PROBES if channels > 0 else 1)
        ]
        return max(map(self.left, choices))

    def _count(self, union: Callable[[tuple[str, ...]], int]) -> int:
        """What is left, by the numbers of channels that are alive in any of several layers."""
        assert self._labels is not None
        different = {layers for label in self._labels.values() for layers, _ in label}
        unions = {layers: union(layers) if layers else 1 for layers in different}
        sizes = {
            node: sum(unions[layers] * factor for layers, factor in label)
            for node, label in self._labels.items()
        }
        return self._fixed + self._sum(sizes)

    def _sum(self, sizes: Mapping[fx.Node, int], groups: Mapping[Term, int] | None = None) -> int:
        groups = groups or {}
        born = (sizes[node] for node in self._biased if sizes[source(node)] < self._sizes[source(node)])
        return sum(born) + sum(
            t.factor * math.prod(sizes[node] for node in t.nodes) // groups.get(t, t.groups)
            for t in self._terms
        )

    def _analyse(self, alive: Mapping[str, np.ndarray]) -> Analysis:
        dead = {name: torch.from_numpy(~mask) for name, mask in alive.items()}
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

    def _find_labels(self) -> dict[fx.Node, Label] | None:
        """What the numbers of channels depend on; None where it is more than labels can say."""
        if any(_is_grouped(node, self._network) for node in self._network.graph.nodes):
            return None
        probes = self._probes()
        alive = {name: np.stack([probe[name] for probe in probes]) for name in self._widths}
        flows = [self._analyse(probe).flows for probe in probes]
        labels: dict[fx.Node, Label] = {}
        known: dict[bytes, Label] = {}  # values that keep the same channels have the same label
        for node, rule in self._network.rules.items():
            if node not in flows[0]:
                continue
            kept = np.stack([flow[node].needed.numpy() for flow in flows])
            label = known.get(kept.tobytes()) or _label(kept, alive)
            if label is None and isinstance(rule, Concatenated):
                label = self._joined(node, kept, flows, labels)
            if label is not None:
                labels[node] = known[kept.tobytes()] = label
        if any(node not in labels for node in self._sizes):
            return None
        return {node: labels[node] for node in self._sizes}

    def _probes(self) -> list[dict[str, np.ndarray]]:
        """Choices that tell the layers apart: random ones, and each layer once alone of those of its width.

        Always with the first channel: a layer without any is a case of its own.
        """
        random, seen = np.random.default_rng(0), Counter[int]()
        probes = [{n: random.random(w) < 0.5 for n, w in self._widths.items()} for _ in range(_RANDOM_PROBES)]
        alone = {}
        for name, width in self._widths.items():
            alone[name] = divmod(seen[width], max(width - 1, 1))
            seen[width] += 1
        for number in range(max(probe for probe, _ in alone.values()) + 2):  # in the last there is none
            probes.append({n: np.zeros(w, bool) for n, w in self._widths.items()})
            for name, (probe, channel) in alone.items():
                probes[-1][name][channel + 1 :][:1] = probe == number
        for probe in probes:
            for mask in probe.values():
                mask[0] = True
        return probes

    def _joined(
        self, node: fx.Node, kept: np.ndarray, flows: list, labels: dict[fx.Node, Label]
    ) -> Label | None:
        """The label of a concatenation: those of its parts, one after the other."""
        parts = [part for part in node.all_input_nodes if part in labels]
        if len(parts) != len(node.all_input_nodes):
            return None
        pieces = np.concatenate([np.stack([f[part].needed.numpy() for f in flows]) for part in parts], axis=1)
        return (
            tuple(piece for part in parts for piece in labels[part]) if np.array_equal(pieces, kept) else None
        )


_RANDOM_PROBES = 8


def _groups_left(needed: Tensor, groups: int) -> int:
    return int(needed.view(groups, -1).any(1).sum())


def _label(kept: np.ndarray, alive: Mapping[str, np.ndarray]) -> Label | None:
    """Which layers' channels these are, in all probes: (probes, channels) against the same of each layer."""
    width = kept.shape[1]
    if kept.all():
        return (((), width),)
    for factor in sorted({width // mask.shape[1] for mask in alive.values() if width % mask.shape[1] == 0}):
        spread = {n: m.repeat(factor, axis=1) for n, m in alive.items() if m.shape[1] * factor == width}
        inside = [name for name, mask in spread.items() if not (mask & ~kept).any()]
        if inside and np.array_equal(np.logical_or.reduce([spread[name] for name in inside]), kept):
            return ((tuple(inside), factor),)
    return None


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
        if isinstance(rule, Weighted):
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


def _per_channel(rule: Rule, module: Any) -> list[int]:
    """Parameters that a module has for each channel of its output, besides a weight matrix."""
    if isinstance(rule, Weighted):
        return [1] if module.bias is not None else []
    if isinstance(rule, BatchNorm):
        return [1 for parameter in (module.weight, module.bias) if parameter is not None]
    if isinstance(rule, PReLU):
        return [1] if module.num_parameters > 1 else []
    return [module.num_embeddings] if isinstance(rule, Embedding) else []
