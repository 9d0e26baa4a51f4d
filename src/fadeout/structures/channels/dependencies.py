"""Which channels a value keeps, as a function of those that are alive in the layers: found once, then quick.

In nearly every network a channel of a value is kept if it is alive in any of a few layers: in the batch-norm
that it came from, in those that read it (of a residual sum, of concatenated maps), or else always. A gate,
which is multiplied with another value, is kept if it is alive in all of a few: in its own layer, and in that
of what it is multiplied with. Rules say which channels of different values belong together,
:meth:`.Rule.links`; analyses of a few choices show which of the layers among them matter for which value. If
they are all explained by that, the numbers of channels for any choice are a few lookups.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import fx

from fadeout.graph.analysis import Analysis

Alive = Mapping[str, np.ndarray]


def all_alive(widths: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Every channel of these layers."""
    return {name: np.ones(width, bool) for name, width in widths.items()}


@dataclass(frozen=True)
class Dependence:
    """For each channel of a value the atoms (channels of layers) of which one must be alive, or every one.

    Atoms are counted through all layers; the last one, behind all of them, is always alive.
    """

    atoms: np.ndarray
    starts: np.ndarray
    """Where the atoms of each channel begin."""
    every: bool = False

    def kept(self, alive: np.ndarray) -> np.ndarray:
        """Which channels are kept, for each row of a table of what is alive."""
        some = np.logical_and if self.every else np.logical_or
        return some.reduceat(alive[:, self.atoms], self.starts, axis=1)

    @cached_property
    def channel(self) -> np.ndarray:
        """The channel of each atom."""
        return np.repeat(np.arange(len(self.starts)), np.diff(self.starts, append=len(self.atoms)))

    def groups(self, owner: np.ndarray) -> dict[tuple[int, ...], np.ndarray]:
        """The channels that depend on the same layers."""
        layers = int(owner.max()) + 2  # the last of all may be -1
        pairs = np.unique(self.channel * layers + owner[self.atoms] + 1)
        channel, layer = pairs // layers, pairs % layers - 1
        first = np.searchsorted(channel, np.arange(len(self.starts)))
        size = np.diff(first, append=len(pairs))
        alone = np.flatnonzero(size == 1)  # nearly all
        found = {(one,): alone[layer[first[alone]] == one] for one in np.unique(layer[first[alone]]).tolist()}
        others: dict[bytes, list[int]] = {}
        for each in np.flatnonzero(size > 1).tolist():
            others.setdefault(layer[first[each] : first[each] + size[each]].tobytes(), []).append(each)
        return found | {
            tuple(np.frombuffer(own, layer.dtype).tolist()): np.array(each) for own, each in others.items()
        }


class Dependencies:
    """The numbers of channels that values keep.

    Args:
        of: what the channels of each value depend on.
        widths: the number of channels of each layer that may lose some, by module name.
        pieces: the same of the values that are pieces of another. Where all of a piece is dead one channel
            of it stays, and so it does in the whole: what follows only an analysis can say.
    """

    def __init__(
        self,
        of: Mapping[fx.Node, Dependence],
        widths: Mapping[str, int],
        pieces: Iterable[Dependence] = (),
    ):
        self._widths, pieces = widths, list(pieces)
        self._each = list({id(one): one for one in [*of.values(), *pieces]}.values())
        number = {id(one): i for i, one in enumerate(self._each)}
        self._nodes = {node: number[id(one)] for node, one in of.items()}
        self.pieces = [number[id(one)] for one in pieces]
        # every one of some is alive where none of them is dead: a second table, of what is dead, says that
        self._owner = np.repeat(np.arange(len(widths) + 1), [*widths.values(), 1])  # of each atom
        behind = len(self._owner)
        self._every = np.array([one.every for one in self._each])
        self._sizes = np.array([len(one.starts) for one in self._each])
        self._atoms = np.concatenate([one.atoms + behind * one.every for one in self._each])
        ends = np.cumsum([len(one.atoms) for one in self._each])
        self._starts = np.concatenate(
            [one.starts + end - len(one.atoms) for one, end in zip(self._each, ends, strict=True)]
        )
        self._firsts = np.cumsum([0, *(len(one.starts) for one in self._each[:-1])])

    def counts(self, alive: Alive) -> dict[fx.Node, int] | None:
        """How many channels each value keeps; None where only an analysis can say.

        No value loses all channels: one stays, and where some are alive only if others are, so do these.
        """
        atoms = np.concatenate([*(alive[name] for name in self._widths), [True]])
        atoms = np.concatenate([atoms, ~atoms]) if self._every.any() else atoms
        found = np.logical_or.reduceat(atoms[self._atoms], self._starts)
        counts = np.add.reduceat(found, self._firsts, dtype=np.int64)
        numbers = np.where(self._every, self._sizes - counts, counts)
        if (self._every.any() and not numbers.all()) or not numbers[self.pieces].all():
            return None
        kept = np.maximum(numbers, 1).tolist()
        return {node: kept[one] for node, one in self._nodes.items()}

    def shared(self) -> set[tuple[int, ...]]:
        """Layers, by their numbers, any of which keeps the same channels of a value: sides of an addition."""
        found = {layers for one in self._each for layers in one.groups(self._owner)}
        return {layers for layers in found if len(layers) > 1 and layers[-1] < len(self._widths)}

    def most(self, least: Mapping[str, int]) -> dict[fx.Node, int]:
        """How many channels each value keeps at most, if so many of each layer are alive."""
        each = [*least.values()]
        numbers = []
        for one in self._each:
            number = 0
            for layers, channels in one.groups(self._owner).items():
                if layers == (len(each),):  # always
                    number += len(channels)
                    continue
                among = np.zeros(len(one.starts), bool)
                among[channels] = True
                spread = int(np.bincount(one.atoms[among[one.channel]]).max())  # channels for one atom
                least_alive = [each[layer] for layer in layers if layer < len(each)]
                alive = min(least_alive) if one.every else sum(least_alive)
                number += min(alive * spread, len(channels))
            numbers.append(max(number, 1))
        return {node: numbers[one] for node, one in self._nodes.items()}


def find_dependencies(
    nodes: Iterable[fx.Node], widths: Mapping[str, int], analyse: Callable[[Alive], Analysis]
) -> Dependencies | None:
    """What the channels of these values depend on; None where it is more than dependencies can say.

    Args:
        nodes: of the values.
        widths: the number of channels of each layer that may lose some, by module name.
        analyse: analyses the network with these channels alive.
    """
    whole = analyse(all_alive(widths))
    together = belong_together(whole)
    layers = {whole.network.key(node): together[node] for node in whole.flows}
    atoms = np.concatenate([layers[name] for name in widths])
    probes = _probes(widths, layers)
    found = [analyse(probe) for probe in probes]
    whole_ones = [i for i, one in enumerate(found) if not one.emptied]  # before an empty layer more goes
    if whole_ones:
        probes, found = [probes[i] for i in whole_ones], [found[i] for i in whole_ones]
    alive = np.stack([np.concatenate([*probe.values(), [True]]) for probe in probes])
    flows = [one.flows for one in found]
    owner = np.repeat(np.arange(len(widths)), list(widths.values()))
    nodes, result = list(nodes), dict[fx.Node, Dependence]()
    known: dict[tuple[bytes, bytes], Dependence] = {}  # for values that keep the same channels
    pieces = [n for n in whole.flows if any(whole.rules[one].divides for one in n.all_input_nodes)]
    for node in dict.fromkeys([*nodes, *pieces]):
        kept = np.stack([flow[node].needed.numpy() for flow in flows])
        key = together[node].tobytes(), kept.tobytes()
        dependence = known.get(key) or _dependence(kept, together[node], atoms, owner, alive)
        if dependence is None:
            return None
        result[node] = known[key] = dependence
    return Dependencies({node: result[node] for node in nodes}, widths, [result[one] for one in pieces])


def belong_together(whole: Analysis) -> dict[fx.Node, np.ndarray]:
    """For each channel of each value a number: equal for those that belong together."""
    sizes = [flow.width for flow in whole.flows.values()]
    first = dict(zip(whole.flows, np.cumsum([0, *sizes]).tolist(), strict=False))
    one, other = [np.zeros(0, int)], [np.zeros(0, int)]
    for node in whole.flows:
        for before, inputs, outputs in whole.rules[node].links(node, whole):
            if before in first:
                one.append(first[before] + inputs)
                other.append(first[node] + outputs)
        sites = whole.network.sites(node) if node.op == "call_module" else []
        for site in sites[1:] if node in sites[:1] else []:  # which keep the same channels
            if site in first and whole.flows[site].width == whole.flows[node].width:
                one.append(np.arange(whole.flows[node].width) + first[node])
                other.append(np.arange(whole.flows[node].width) + first[site])
    left, right = np.concatenate(one), np.concatenate(other)
    number = np.arange(sum(sizes))
    while True:  # the smallest number spreads along the links, and jumps ahead
        new, smaller = number.copy(), np.minimum(number[left], number[right])
        np.minimum.at(new, left, smaller)
        np.minimum.at(new, right, smaller)
        new = new[new]
        if np.array_equal(new, number):
            return {
                node: number[first[node] : first[node] + flow.width] for node, flow in whole.flows.items()
            }
        number = new


def _probes(widths: Mapping[str, int], together: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Choices that tell the layers apart, none of which leaves a layer without any channel.

    Random ones; and such that each layer is once the only one to be alive in a channel.
    """
    random, probes = np.random.default_rng(0), []
    for density in (0.5, 0.5, 0.5, 0.5, 0.9, 0.3, 0.1, 0.1):
        probes.append({name: random.random(width) < density for name, width in widths.items()})
        for mask in probes[-1].values():
            mask[random.integers(len(mask))] = True
    waiting, number = list(widths), 0
    while number < 3 or (waiting and number < 3 + len(widths)):
        refuge = {name: number % width for name, width in widths.items()}  # where all others are alive
        probes.append({name: np.arange(width) == refuge[name] for name, width in widths.items()})
        used = {int(together[name][channel]) for name, channel in refuge.items()}
        still = []
        for name in waiting:
            free = [channel for channel, one in enumerate(together[name].tolist()) if one not in used]
            if free:
                probes[-1][name][free[0]] = True
                used.add(int(together[name][free[0]]))
            else:
                still.append(name)
        waiting, number = still, number + 1
    return probes


def _dependence(
    kept: np.ndarray, channels: np.ndarray, atoms: np.ndarray, owner: np.ndarray, alive: np.ndarray
) -> Dependence | None:
    """What the channels of a value depend on, if that explains what it keeps in all probes.

    Args:
        kept: (probes, channels) what the value keeps.
        channels: for each channel the number of those that it belongs together with.
        atoms: the same for each channel of the layers.
        owner: the layer of each atom.
        alive: (probes, atoms and one more) what is alive.
    """
    order = atoms.argsort(kind="stable")
    begin, end = (np.searchsorted(atoms[order], channels, side) for side in ("left", "right"))
    candidates = [order[a:b] for a, b in zip(begin, end, strict=True)]
    channel = np.repeat(np.arange(len(channels)), end - begin)
    atom = np.concatenate([*candidates, np.zeros(0, int)])
    found = _one_of(kept, channel, atom, owner, alive)
    for dependence in (found, _every_one_of(kept, channel, atom, owner, alive)):
        explained = dependence.kept(alive)
        explained[~explained.any(1), 0] = True  # no value loses all its channels
        if np.array_equal(explained, kept):
            return dependence
    return None


def _one_of(
    kept: np.ndarray, channel: np.ndarray, atom: np.ndarray, owner: np.ndarray, alive: np.ndarray
) -> Dependence:
    """The layers that are never alive where a channel is not kept, so that one of them may be why it is."""
    channels, atoms = kept.shape[1], len(owner)
    silent = alive[:, atom] & ~kept[:, channel]  # alive there, and yet not kept here
    stays = ~np.isin(owner[atom], owner[atom[silent.any(0)]])
    dependence = _by_channel(channel[stays], atom[stays], channels, atoms)
    more = kept & ~dependence.kept(alive)  # kept although all that it might depend on is dead
    if more.any():
        # Then it is always kept, and so are those that would depend on the same layers.
        for group in dependence.groups(np.append(owner, -1)).values():
            if more[:, group].any() and kept[:, group].all():
                stays &= ~np.isin(channel, group)
        dependence = _by_channel(channel[stays], atom[stays], channels, atoms)
    return dependence


def _every_one_of(
    kept: np.ndarray, channel: np.ndarray, atom: np.ndarray, owner: np.ndarray, alive: np.ndarray
) -> Dependence:
    """The layers that are never dead where a channel is kept, so that every one of them must be alive."""
    last = kept[:, :1] & (kept.sum(1, keepdims=True) == 1)  # one is kept, whatever is alive
    without = kept[:, channel] & ~alive[:, atom] & ~last
    stays = ~np.isin(owner[atom], owner[atom[without.any(0)]])
    return _by_channel(channel[stays], atom[stays], kept.shape[1], len(owner), every=True)


def _by_channel(
    channel: np.ndarray, atom: np.ndarray, channels: int, always: int, every: bool = False
) -> Dependence:
    """The dependence for pairs of a channel and an atom; channels without any are always kept."""
    others = np.setdiff1d(np.arange(channels), channel)
    channel = np.concatenate([channel, others])
    atom = np.concatenate([atom, np.full(len(others), always)])
    order = channel.argsort(kind="stable")
    return Dependence(atom[order], np.searchsorted(channel[order], np.arange(channels)), every)
