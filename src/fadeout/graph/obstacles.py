"""What keeps channels that could go otherwise: operators without a rule, and lines that count channels."""

import linecache
import operator
from dataclasses import replace

from torch import fx

from fadeout.graph.analysis import Analysis
from fadeout.graph.network import Network
from fadeout.graph.rules.base import Leaf
from fadeout.graph.rules.calls import name_of, source
from fadeout.graph.side_effects import keep


def unknown_operators(network: Network) -> list[str]:
    """The classes of modules and the functions that have no rule, with the place of the first of each."""
    found: dict[str, str] = {}
    for node, rule in network.rules.items():
        if rule.is_known or node.op == "output":
            continue
        owner = str(node.target) if node.op == "call_module" else reads_weights_of(node)
        if owner:
            found.setdefault(type(network.modules[owner]).__name__, f" (at {owner})")
        elif gives_tensors(node, network):
            found.setdefault(name_of(node), "()")
    return [name + where for name, where in found.items()]


def gives_tensors(node: fx.Node, network: Network) -> bool:
    """Whether tensors come out of a call, one or several, or go into one, and not just numbers."""
    return node.target is operator.setitem or any(one in network.shapes for one in (node, *node.users))


def reads_weights_of(node: fx.Node) -> str:
    """The module whose parameters a function reads, behind its first input; empty where there is none."""
    waiting = node.all_input_nodes[1:]
    while waiting:
        one = waiting.pop(0)
        if one.op == "get_attr":
            return str(one.target).rpartition(".")[0]
        waiting += one.all_input_nodes
    return ""


def find_obstacles(a: Analysis) -> dict[fx.Node, str]:
    """The calls that only read numbers of channels or keep values aside, each with a reason in words."""
    found = {}
    for node, rule in a.rules.items():
        if node.target is keep and source(node) in a.flows:
            found[node] = (
                f"the forward keeps them in {str(node.args[1])!r}, where they may be read: leave that out, "
                "if they shall go"
            )
        for user in rule.computed_with(node, a):
            found[node] = (
                f"the forward computes with how many there are ({name_of(user)}{place(user)}): write the "
                "number itself there"
            )
    return found


def without(network: Network, obstacles: dict[fx.Node, str]) -> Network:
    """The network as if these calls needed nothing."""
    return replace(network, rules=network.rules | dict.fromkeys(obstacles, Leaf()))


def in_words(obstacles: dict[fx.Node, str]) -> str:
    return ", and ".join(dict.fromkeys(obstacles.values()))


def place(node: fx.Node) -> str:
    """The line of the network's code that makes a call, to be put behind its name."""
    if node.meta.get("line") is None:
        return ""
    file, number = node.meta["line"]
    line = linecache.getline(file, number).strip()
    return f" in {file}:{number}" + (f": {line}" if line else "")
