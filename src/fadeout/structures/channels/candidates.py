"""Which channels can go: the layers and heads of a traced network, and what belongs to each of them."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, fx

from fadeout._checks import warn
from fadeout.compaction.compact import compact
from fadeout.graph.analysis import Analysis, analyse
from fadeout.graph.network import Network
from fadeout.graph.obstacles import find_obstacles, in_words, unknown_operators, without
from fadeout.graph.rules.calls import name_of, source
from fadeout.graph.side_effects import copied
from fadeout.torch_bridge.computed_parameters import computers


@dataclass(frozen=True)
class Layer:
    """The channels of one layer, and what belongs to each of them."""

    name: str
    """The module whose output the channels are: a batch-norm, or a layer that none follows; or a node."""
    width: int
    fading: tuple[str, ...]
    """Parameters whose slices along :attr:`dims` fade with their channel."""
    scored: tuple[str, ...]
    """Parameters whose slices make the score of their channel."""
    rows: Mapping[str, np.ndarray] = field(default_factory=dict)
    """For a head or a gated pair, which is several slices: by parameter, (channels, slices of each)."""
    dims: Mapping[str, int] = field(default_factory=dict)
    """By parameter, the dimension of its slices, where that is not the first."""
    stays: tuple[int, ...] = ()
    """The numbers of channels that can never go, such as those of a piece that is read in another way."""

    def dim(self, name: str) -> int:
        return self.dims.get(name, 0)

    def with_names(self, new: Callable[[str], str]) -> "Layer":
        """The same layer, with other names for its parameters."""
        fading, scored = tuple(map(new, self.fading)), tuple(map(new, self.scored))
        rows, dims = ({new(name): one for name, one in own.items()} for own in (self.rows, self.dims))
        return replace(self, fading=fading, scored=scored, rows=rows, dims=dims)

    def by_unit(self, name: str, sizes: Tensor) -> Tensor:
        """The norm for each channel, from those of the slices."""
        if name not in self.rows:
            return sizes
        each = sizes[torch.from_numpy(self.rows[name]).to(sizes.device)]
        return each.norm(dim=1).masked_fill(each.isneginf().any(1), -math.inf)

    def sum_by_unit(self, name: str, values: Tensor) -> Tensor:
        """The sum for each channel, from values of the slices."""
        return values[torch.from_numpy(self.rows[name])].sum(1) if name in self.rows else values

    def in_slices(self, name: str, values: Tensor, count: int) -> Tensor:
        """A value of each channel in the first of its slices, zero in the others: their norm is the value."""
        if name not in self.rows:
            return values
        return values.new_zeros(count).index_copy(0, torch.from_numpy(self.rows[name][:, 0].copy()), values)

    def by_slice(self, name: str, dead: Tensor, count: int) -> Tensor:
        """Which slices of a parameter belong to the channels that are dead."""
        if name not in self.rows:
            return dead
        found = torch.zeros(count, dtype=torch.bool, device=dead.device)
        found[torch.from_numpy(self.rows[name])[dead].view(-1)] = True
        return found


def find_layers(
    network: Network,
    takes_part: Callable[[Layer], bool],
    *,
    by_norm: bool,
    filters: bool,
    as_in_paper: bool,
    couple: bool,
) -> list[Layer]:
    """The layers, and heads, of which channels can go; raises where there are none.

    Args:
        network: the traced network.
        takes_part: whether a layer is trained, and among those that the user has chosen.
        by_norm: layers without batch-norm are candidates too, and so are heads.
        filters: the filters of a batch-norm's channels fade too.
        as_in_paper: a batch-norm that feeds an addition which another batch-norm follows is none.
        couple: both sides of an addition keep the same channels.
    """
    layers = [_layer_of(node, network, by_norm, filters, as_in_paper) for node in network.graph.nodes]
    layers = [layer for layer in layers if layer is not None and takes_part(layer)]
    heads = [head for head in _find_heads(network) if takes_part(head)] if by_norm else []
    found = [*_removable(network, layers, couple), *_removable(network, heads, couple)]
    stopped = _stopped(network, [one for one in (*layers, *heads) if one not in found], couple)
    if not found:
        raise ValueError(_why_nothing_can_go(network, by_norm) + (f". {stopped}" if stopped else ""))
    if stopped:
        warn(stopped)
    return _with_what_stays(network, found, couple)


def _layer_of(
    node: fx.Node, network: Network, by_norm: bool, with_filters: bool, as_in_paper: bool
) -> Layer | None:
    """The layer whose channels come out of this node, if they may be pruned."""
    sites = _calls(node, network)
    if node.op != "call_module" or node is not sites[0]:  # a module that is called several times is one layer
        return None
    if all(_goes_with_what_follows(site, network, by_norm) for site in sites):
        return None
    name = str(node.target)
    own = tuple(f"{name}.{each}" for each in network.rules[node].scales(network.module(node)))
    if own:
        if as_in_paper and any(_feeds_a_normed_addition(site, network) for site in sites):
            return None
        before = source(node)
        # one that others read, or that is called elsewhere too, is not this layer's own
        alone = len(sites) == len(before.users) == 1 and len(_calls(before, network)) == 1
        filters = _filters_of(before, network) if alone else {}
        fading = (*own, *filters) if with_filters else own
        width = len(network.model.get_parameter(own[0]))
        layer = Layer(name, width, fading, (*own, *filters) if by_norm else own[:1], dims=filters)
        return _in_pairs(layer, sites, network)
    normed = any(_meets_a_norm(site, network) for site in sites)
    filters = _filters_of(node, network) if by_norm and not normed else {}
    names = tuple(filters)
    if not names:
        return None
    width = network.model.get_parameter(names[0]).shape[filters[names[0]]]
    return _in_pairs(Layer(name, width, names, names, dims=filters), sites, network)


def _in_pairs(layer: Layer, sites: Sequence[fx.Node], network: Network) -> Layer:
    """The same layer; or where a gated linear unit alone takes its channels, the pairs that go there."""
    readers = list(_readers(sites[0], network))
    unit = _gated_unit(readers[0], layer, network) if len(sites) == len(readers) == 1 else None
    if unit is None:
        return layer
    first = np.arange(layer.width // 2)
    rows = dict.fromkeys((*layer.fading, *layer.scored), np.stack([first, first + len(first)], 1))
    return replace(layer, name=network.key(unit), width=len(first), rows=rows)


def _gated_unit(reader: fx.Node, layer: Layer, network: Network) -> fx.Node | None:
    """Where one half of a layer's channels gates the other: in ``glu``, or in a product of the two halves."""
    rule = network.rules[reader]
    if rule.gates:
        return reader if rule.halves(reader, analyse(network, dead={})) else None
    product = _product_of_halves(reader, network)
    if product is None:
        return None
    a = analyse(network, dead={layer.name: torch.ones(layer.width, dtype=torch.bool, device="cpu")})
    sticks = [_is_gate(piece, a) for piece in reader.users]
    even = all(piece in a.flows and 2 * a.flows[piece].width == layer.width for piece in reader.users)
    return product if even and sum(sticks) == 1 else None


def _product_of_halves(split: fx.Node, network: Network) -> fx.Node | None:
    """The product of the two pieces of a split, if that is all that they are there for."""
    readers = {_only_reader(piece, network)[1] for piece in split.users}
    product = readers.pop() if len(split.users) == 2 and network.rules[split].divides else None
    return None if product is None or readers or not _multiplies(product, network) else product


def _calls(node: fx.Node, network: Network) -> Sequence[fx.Node]:
    """All calls of the module that a node calls."""
    return network.sites(node) if node.op == "call_module" else [node]


def _filters_of(node: fx.Node, network: Network) -> dict[str, int]:
    """The parameters whose slices make the channels of a value, and along which dimension."""
    if node.op != "call_module":
        return {}
    rule, module = network.rules[node], network.module(node)
    dims = {name: rule.dim(module) if getattr(module, name).dim() > 1 else 0 for name in rule.filters(module)}
    return {f"{node.target}.{name}": dim for name, dim in dims.items()}


def _meets_a_norm(node: fx.Node, network: Network) -> bool:
    """Whether a norm with scales follows, reshaped, activated or beside others: the channels are its then."""
    return any(_has_scales(one, network) for one in _readers(node, network, gated=True, beside=True))


def _goes_with_what_follows(node: fx.Node, network: Network, by_norm: bool) -> bool:
    """Whether only depthwise convolutions (and norms) take it, behind which the same channels are candidates.

    When the channel behind is dead, nobody needs the one in front, which need not fade for it. The other way
    round nothing can go: a norm behind makes something of whatever it gets, and undoes a fade in front.
    (Beside others or in parts it is a candidate, since something of it must stay.)
    """
    others = [reader for reader in _readers(node, network, gated=True) if not _has_scales(reader, network)]
    return bool(others) and all(
        network.rules[reader].is_depthwise(network.module(reader))
        and (_meets_a_norm(reader, network) or (by_norm and bool(_filters_of(reader, network))))
        for reader in others
    )


def _has_scales(node: fx.Node, network: Network) -> bool:
    rule = network.rules[node]
    return rule.normalizes and bool(rule.scales(network.module(node)))


def _readers(node: fx.Node, network: Network, gated: bool = False, beside: bool = False) -> Iterator[fx.Node]:
    """What takes a value, activated perhaps; or also gated, or reshaped and beside others."""
    for user in node.users:
        rule = network.rules[user]
        product = _product_of_halves(user, network) if gated else None
        passes = rule.keeps_alike or (gated and rule.gates) or (beside and rule.stands_beside)
        if passes or product is not None:
            yield from _readers(product or user, network, gated, beside)
        else:
            yield user


def _feeds_a_normed_addition(node: fx.Node, network: Network) -> bool:
    """Whether a batch-norm's output goes into an addition whose result another batch-norm takes."""
    for user in node.users:
        rule = network.rules[user]
        if rule.joins and any(network.rules[reader].normalizes for reader in user.users):
            return True
        if rule.is_identity and _feeds_a_normed_addition(user, network):
            return True
    return False


def _find_heads(network: Network) -> list[Layer]:
    """The heads of attentions, each of which goes as a whole."""
    whole, found = analyse(network, dead={}), dict[str, Layer]()
    for node, rule in network.rules.items():
        units = rule.units(node, whole) if node in whole.flows else None
        if units is not None and whole.flows[units.node].width > 1:
            name, rows = network.key(units.node), tuple(units.rows)
            width = whole.flows[units.node].width
            found[name] = Layer(name, width, rows, rows, units.rows, units.dims)
    return list(found.values())


def _removable(network: Network, layers: Sequence[Layer], couple: bool) -> list[Layer]:
    """The layers that really lose a channel when it is dead."""
    found = _analyse_dead(network, {layer.name: np.arange(layer.width) % 2 == 1 for layer in layers}, couple)
    lost = {
        network.key(node)
        for node, flow in found.flows.items()
        if not flow.needed.all() and not _is_gate(node, found)
    }
    return [layer for layer in layers if layer.name in lost]


def _with_what_stays(network: Network, layers: list[Layer], couple: bool) -> list[Layer]:
    """The same layers, with the channels that are needed however many are dead.

    Grouped convolutions fill up their groups with what is dead; there nothing is concluded.
    """
    if any(rule.is_grouped(network.module(node)) for node, rule in network.rules.items()):
        return layers
    stays = {layer.name: np.full(layer.width, layer.width > 1) for layer in layers}
    for alive in (slice(0, None, 2), slice(1, None, 2), slice(0, 1), slice(-1, None)):
        dead = {name: np.ones_like(mask) for name, mask in stays.items()}
        for mask in dead.values():
            mask[alive] = False
        for node, flow in _analyse_dead(network, dead, couple).flows.items():
            name = network.key(node)
            if name in stays:
                stays[name] &= flow.needed.numpy() | ~dead[name]
    return [replace(layer, stays=tuple(stays[layer.name].nonzero()[0].tolist())) for layer in layers]


def _analyse_dead(network: Network, dead: Mapping[str, np.ndarray], couple: bool) -> Analysis:
    tensors = {name: torch.from_numpy(mask) for name, mask in dead.items()}
    return analyse(network, dead=tensors, couple=couple, keep_forward=not network.rewritable)


def _stopped(network: Network, others: Sequence[Layer], couple: bool) -> str:
    """Which of the other layers would lose channels but for a line of the forward, and what to do."""
    obstacles = find_obstacles(analyse(network, dead={}, keep_forward=not network.rewritable))
    freed = _removable(without(network, obstacles), others, couple) if obstacles and others else []
    names = ", ".join(repr(layer.name) for layer in freed)
    return (
        f"Channels() leaves all channels of {names} in place, because {in_words(obstacles)}" if freed else ""
    )


def warn_of_training(network: Network, layers: Sequence[Layer], couple: bool) -> None:
    """Warn where only a network that is trained no more could lose what is counted.

    The graph is that of evaluation mode. Where training mode goes another way, compaction is tried on a copy
    of which half of the channels are dead.
    """
    tensors = [*network.model.parameters(), *network.model.buffers()]
    if network.follows_training is not None or any(tensor.is_meta for tensor in tensors):
        return
    twin = copied(network.model)
    for layer in layers:
        dead = torch.arange(layer.width, device="cpu") % 2 == 1
        for name in layer.fading:
            rows = twin.get_parameter(name).detach().movedim(layer.dim(name), 0)
            rows[layer.by_slice(name, dead, len(rows)).to(rows.device)] = 0
    leaves = [twin.get_submodule(name) for name, one in network.modules.items() if id(one) in network.leaves]
    example = network.example.kwargs or network.example.args
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = compact(twin, example, couple=couple, leaves=leaves)
    if sum(p.numel() for p in small.parameters()) == sum(p.numel() for p in twin.parameters()):
        warn(
            "Channels() counts what compact(..., for_inference=True) takes from this network. Without that, "
            "all channels stay: in training mode the forward goes another way, and needs those that "
            "evaluation mode can do without"
        )


def computed_layers(network: Network) -> dict[str, tuple[str, str]]:
    """The layers whose weights are computed, which keep all channels: by what, and the call that ends it."""
    return {
        name: (how, fold)
        for name, module in network.model.named_modules()
        for _, how, fold in computers(module)
        if id(module) in network.callers
    }


def _is_gate(node: fx.Node, a: Analysis) -> bool:
    """Whether a dead channel of it would be multiplied as a number other than zero: then nothing is dead."""
    node, user = _only_reader(node, a.network)
    if user is None:
        return False
    if _multiplies(user, a.network):
        constant = a.flows[node].constant if node in a.flows else torch.zeros(0, device="cpu")
        return bool((constant.nan_to_num(0.0) != 0).any())
    return _lies_among_gates(node, user, a)


def _multiplies(node: fx.Node, network: Network) -> bool:
    return network.rules[node].joins and "mul" in name_of(node)


def _only_reader(node: fx.Node, network: Network) -> tuple[fx.Node, fx.Node | None]:
    """What a value has become, activated perhaps, in front of its only other reader; and that reader."""
    while len(node.users) == 1:
        (user,) = node.users
        if not network.rules[user].keeps_alike:
            return node, user
        node = user
    return node, None


def _lies_among_gates(part: fx.Node, whole: fx.Node, a: Analysis) -> bool:
    """Whether a part of a concatenation is in the half by which a gated linear unit multiplies the other."""
    reader = next(iter(whole.users), whole)
    rule = a.rules[reader]
    if len(whole.users) != 1 or not rule.halves(reader, a):
        return False
    own = [ours for one, _, ours in a.rules[whole].links(whole, a) if one is part]
    first = min((int(ours[0]) for ours in own), default=0)
    return 2 * first >= a.flows[whole].width


def _why_nothing_can_go(network: Network, by_norm: bool) -> str:
    kind = "layers" if by_norm else "batch-norms"
    advice = "" if by_norm else "Channels(..., by='norm') ranks layers without batch-norm too, "
    return (
        f"no channel of this network can go: none of its {kind} lies between layers that are known, "
        f"chosen by prunable= and trained by the optimizer{what_stays(network)}. {advice}fadeout.Elements() "
        "prunes single weights"
    )


def what_stays(network: Network) -> str:
    """What keeps all its channels for want of a rule, or because its weights are computed, as sentences."""
    unknown, computed = unknown_operators(network), computed_layers(network)
    words = f". Without a rule, and so with all their channels: {', '.join(unknown)}" if unknown else ""
    for name, (how, fold) in list(computed.items())[:1]:
        others = f" (and those of {len(computed) - 1} other layers)" if len(computed) > 1 else ""
        words += (
            f". {how[0].upper() + how[1:]} computes the weight of {name!r}{others}: call {fold} before the "
            "optimizer and the pruner are built"
        )
    return words
