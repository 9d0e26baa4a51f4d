"""Which channels can go: the layers and heads of a traced network, and what belongs to each of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, fx

from fadeout.graph.analysis import analyse
from fadeout.graph.rules.base import Network
from fadeout.graph.trace import unknown_operators


@dataclass(frozen=True)
class Layer:
    """The channels of one layer, and what belongs to each of them."""

    name: str
    """The module whose output the channels are: a batch-norm, or a layer that none follows."""
    width: int
    fading: tuple[str, ...]
    """Parameters whose slices along the first dimension fade with their channel."""
    scored: tuple[str, ...]
    """Parameters whose slices make the score of their channel."""
    rows: Mapping[str, np.ndarray] = field(default_factory=dict)
    """For a head, which is several slices: by parameter, (channels, slices of each)."""

    def by_unit(self, name: str, sizes: Tensor) -> Tensor:
        """The norm for each channel, from those of the slices."""
        if name not in self.rows:
            return sizes
        each = sizes[torch.from_numpy(self.rows[name]).to(sizes.device)]
        return each.norm(dim=1).masked_fill(each.isneginf().any(1), -math.inf)

    def by_slice(self, name: str, dead: Tensor, count: int) -> Tensor:
        """Which slices of a parameter belong to the channels that are dead."""
        if name not in self.rows:
            return dead
        found = torch.zeros(count, dtype=torch.bool, device=dead.device)
        found[torch.from_numpy(self.rows[name])[dead].view(-1)] = True
        return found


def filters_of(node: fx.Node, network: Network) -> tuple[str, ...]:
    """The parameters whose slices make the channels of a value that is read once."""
    if node.op != "call_module" or len(network.sites(node)) > 1 or len(node.users) > 1:
        return ()
    return tuple(f"{node.target}.{each}" for each in network.rules[node].filters(network.module(node)))


def feeds_a_normed_addition(node: fx.Node, network: Network) -> bool:
    """Whether a batch-norm's output goes into an addition whose result another batch-norm takes."""
    for user in node.users:
        rule = network.rules[user]
        if rule.joins and any(network.rules[reader].normalizes for reader in user.users):
            return True
        if rule.is_identity and feeds_a_normed_addition(user, network):
            return True
    return False


def find_heads(network: Network) -> list[Layer]:
    """The heads of attentions, each of which goes as a whole."""
    whole, found = analyse(network, dead={}), dict[str, Layer]()
    for node, rule in network.rules.items():
        units = rule.units(node, whole) if node in whole.flows else None
        if units is not None and whole.flows[units.node].width > 1:
            name, rows = network.key(units.node), tuple(units.rows)
            found[name] = Layer(name, whole.flows[units.node].width, rows, rows, units.rows)
    return list(found.values())


def removable(network: Network, layers: Sequence[Layer], couple: bool) -> list[Layer]:
    """The layers that really lose a channel when it is dead."""
    dead = {layer.name: torch.arange(layer.width, device="cpu") % 2 == 1 for layer in layers}
    flows = analyse(network, dead=dead, couple=couple, keep_forward=not network.rewritable).flows
    follow = {network.key(node): flow for node, flow in flows.items()}
    lost = {name for name in dead if name in follow and not follow[name].needed.all()}
    return [layer for layer in layers if layer.name in lost]


def why_nothing_can_go(network: Network, by_norm: bool) -> str:
    kind = "layers" if by_norm else "batch-norms"
    unknown = unknown_operators(network)
    stopped = f". Without a rule, and so with all their channels: {', '.join(unknown)}" if unknown else ""
    advice = "" if by_norm else "Channels(..., by='norm') ranks layers without batch-norm too, "
    return (
        f"no channel of this network can go: none of its {kind} lies between layers that are known, "
        f"chosen by prunable= and trained by the optimizer{stopped}. {advice}fadeout.Elements() prunes "
        "single weights"
    )
