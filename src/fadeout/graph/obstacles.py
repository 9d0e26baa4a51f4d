"""Lines of a forward for which channels stay that could go otherwise, and what to do about them."""

import linecache
from dataclasses import replace

from torch import fx

from fadeout.graph.analysis import Analysis
from fadeout.graph.kept import keep
from fadeout.graph.network import Network
from fadeout.graph.rules.base import Leaf
from fadeout.graph.rules.calls import name_of, source


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
