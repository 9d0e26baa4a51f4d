"""Channels whose weights are all zero and that stay nevertheless: how many, why, and what to do about it."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from operator import getitem

import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy

from fadeout.graph.analysis import Analysis, analyse
from fadeout.graph.network import Network
from fadeout.graph.obstacles import find_obstacles, gives_tensors, in_words, place, reads_weights_of, without
from fadeout.graph.rules.calls import name_of
from fadeout.graph.rules.registry import MODULES, rule_of_module
from fadeout.graph.side_effects import keeps
from fadeout.torch_bridge.computed_parameters import computers
from fadeout.torch_bridge.modes import still


def why_zeros_stay(analysis: Analysis, parameters: Callable[[Analysis], int]) -> str | None:
    """Which channels are zero and stay, for a warning; None where nothing can be done about any of them.

    What the network returns, what a norm over all channels reads, the last channel of a layer, what the user
    couples and what makes groups equal stay for good reasons: nothing is said of them.

    Args:
        analysis: by which the network was cut.
        parameters: how many a network has left that is cut by another analysis.
    """
    reasons = _Reasons(analysis, parameters)
    layers = defaultdict[str, list[str]](list)
    total = 0
    for name, node, stays in _zeros(analysis):
        for number, reason in reasons.of(name, node, stays):
            layers[reason].append(f"{number} of {name!r}")
            total += number
    if not total:
        return None
    parts = [f"{_listed(each)} stay, because {reason}" for reason, each in layers.items()]
    channels = "channel" if total == 1 else "channels"
    return f"compact() keeps {total:,} {channels} whose weights are all zero: {'; '.join(parts)}"


def _listed(layers: list[str]) -> str:
    shown = ", ".join(layers[:_SHOWN])
    return f"{shown} and more of {len(layers) - _SHOWN} other layers" if len(layers) > _SHOWN else shown


_SHOWN = 4


def _zeros(analysis: Analysis) -> Iterator[tuple[str, fx.Node, Tensor]]:
    """The layers in the graph of which channels are zero and stay: name, node, which."""
    network = analysis.network
    read = {str(node.target): node for node in network.graph.nodes if node.op == "get_attr"}
    for name, module in network.model.named_modules():
        zero = _zero_rows(module)
        if zero is None or not bool(zero.any()):
            continue
        calls = network.callers.get(id(module))
        node = calls[0] if calls else read.get(f"{name}.weight")
        flow = None if node is None else analysis.flows.get(node)
        if flow is not None and (flow.width != len(zero) or int(flow.needed.sum()) == 1):
            continue
        stays = zero if flow is None else zero & flow.needed
        if node is not None and bool(stays.any()):
            yield name, node, stays


def _zero_rows(module: nn.Module) -> Tensor | None:
    """Which channels of a layer have no weight but zero; None where it is no layer."""
    rule = rule_of_module(module)
    with still(module):  # a weight may be computed, and a spectral norm changes with every look in training
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor) or is_lazy(weight) or weight.is_meta or not weight.numel():
            return None
        return rule.zeros(module)


@dataclass
class _Reasons:
    """Why channels of a layer stay, and what would help."""

    analysis: Analysis
    parameters: Callable[[Analysis], int]

    @property
    def network(self) -> Network:
        return self.analysis.network

    def of(self, name: str, node: fx.Node, stays: Tensor) -> list[tuple[int, str]]:
        """How many of a layer's channels stay for which reason."""
        readers = list(self._readers(node))
        if any(reader.op == "output" for reader, _ in readers):
            return []
        own = self._without_rule(node, own=True)
        if own is not None:
            return [(int(stays.sum()), own)]
        found = []
        for reason, other in self._options:
            freed = stays & ~other.flows[node].needed if node in other.flows else torch.zeros_like(stays)
            if bool(freed.any()):
                found.append((int(freed.sum()), reason))
                stays = stays & ~freed
        for reader, read in readers:
            reason, stopped = self._without_rule(reader) or self._not_followed(reader, read), stays
            if reason is None:
                stopped = self._at_the_border(reader, read, stays)
                reason = (
                    f"what they give is not zero, and shows at the border that {str(reader.target)!r} pads "
                    "with zeros: set their bias, or the batch-norm's scale and shift, to zero too"
                )
            if bool(stopped.any()):
                found.append((int(stopped.sum()), reason))
                stays = stays & ~stopped
        return found

    @cached_property
    def _options(self) -> list[tuple[str, Analysis]]:
        """Analyses with other options, by what they would need."""
        a, found = self.analysis, []
        if not a.for_inference:
            keep = keeps(self.network.graph) or not self.network.holds
            couple = a.couple and not a.keep_forward
            other = analyse(self.network, for_inference=True, couple=couple, keep_forward=keep)
            left, now = self.parameters(other), self.parameters(a)
            found.append(
                (
                    "they may only go from a network that is trained no more: pass for_inference=True "
                    f"({left:,} parameters are left then, in place of {now:,})",
                    other,
                )
            )
        if a.keep_forward and (a.for_inference or keeps(self.network.graph)):
            other = analyse(self.network, for_inference=a.for_inference)
            found.append(("the forward does more than its graph shows, and must stay as it is", other))
        if obstacles := find_obstacles(a):
            other = analyse(
                without(self.network, obstacles),
                for_inference=a.for_inference,
                couple=a.couple,
                keep_forward=a.keep_forward,
            )
            found.append((in_words(obstacles), other))
        return found

    def _readers(self, node: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
        """What reads the channels of a value, and the value that it reads, up to the next weights."""
        done, waiting = {node}, [(user, node) for user in node.users]
        while waiting:
            reader, read = waiting.pop()
            if reader in done:
                continue
            done.add(reader)
            yield reader, read
            rule = self.network.rules[reader]
            if rule.is_known and not rule.weighs:
                waiting += [(user, reader) for user in reader.users]

    def _without_rule(self, node: fx.Node, own: bool = False) -> str | None:
        """Why there is no rule for a call; None where there is one."""
        network = self.network
        if node.op == "get_attr":
            return self._obstacle(str(node.target).rpartition(".")[0], own)
        if network.rules[node].is_known or node.op == "output" or not gives_tensors(node, network):
            return None
        if node.op == "call_module":
            return self._obstacle(str(node.target), own)
        owner = reads_weights_of(node)
        return self._obstacle(owner, own) if owner else f"the function {name_of(node)}() has no rule"

    def _not_followed(self, node: fx.Node, read: fx.Node) -> str | None:
        """Why channels cannot be followed through a call that has a rule; None where they are.

        What mixes all channels by its nature, a norm or a mean, is not asked why.
        """
        flows, rule = self.analysis.flows, self.network.rules[node]
        if read not in flows or node in flows or node not in self.network.shapes:
            return None
        if rule.mixes or not rule.is_known:
            return None
        name = f"{name_of(node)}()" if node.op != "call_module" else repr(node.target)
        if node in self.network.overwritten:
            return f"what {name} gives is changed in place{place(node)}"
        hint = " (through torch.split() they would be)" if node.target is getitem else ""
        return f"they are not followed through {name}{hint}{place(node)}"

    def _obstacle(self, name: str, own: bool) -> str:
        """Why a module has no rule."""
        module = self.network.modules[name]
        for kind, how, fold in computers(module):
            weight = f"their {kind}" if own else f"the {kind} of {name!r}"
            return f"{how} computes {weight}: call {fold} first"
        if id(module) in self.network.leaves:
            return f"{name!r} is one of the leaves, which keep all their channels"
        if type(module) in MODULES:
            return f"the weights of {name!r} are shared, or read elsewhere"
        return f"class {type(module).__name__} has no rule"

    def _at_the_border(self, reader: fx.Node, read: fx.Node, stays: Tensor) -> Tensor:
        """Which channels are another constant than zero, in front of a layer that cannot fold it."""
        rule = self.network.rules[reader]
        flow = (self._options[0][1] if self._options else self.analysis).flows.get(read)
        folds = rule.folds(self.network.module(reader))
        if flow is None or flow.width != len(stays) or folds:
            return torch.zeros_like(stays)
        return stays & flow.constant.isfinite() & (flow.constant != 0)
