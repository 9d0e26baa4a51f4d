"""Which rule is for which operator."""

import contextlib
import operator
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import fx, nn

from fadeout.graph.network import Network
from fadeout.graph.rules.base import Leaf, Rule, Unknown
from fadeout.graph.rules.calls import name_of

MODULES: dict[type, Rule] = {}
_RULES: list[Rule] = []
_CALLS: dict[str, Rule] = {}  # by name, for functions and methods alike: torch.relu, x.relu(), x.relu_()
_ATTRIBUTES: dict[str, Rule] = {}
_KNOWN: set[Any] = set()  # a function of one's own may have any name: only torch's are known by theirs

_R = TypeVar("_R", bound=Rule)


def handles(
    *modules: type, calls: Iterable[str] = (), attributes: Iterable[str] = ()
) -> Callable[[type[_R]], type[_R]]:
    """Say of a class of rules what it is for; the tracing does not look into modules that have a rule.

    Args:
        modules: classes of modules, without those derived from them.
        calls: names of functions in torch, in ``torch.nn.functional`` and of operators, and of methods.
        attributes: names of attributes of tensors.
    """

    def register(kind: type[_R]) -> type[_R]:
        rule = kind()
        _RULES.append(rule)
        MODULES.update(dict.fromkeys(modules, rule))
        _ATTRIBUTES.update(dict.fromkeys(attributes, rule))
        for call in calls:
            _CALLS[call] = rule
            homes = [(home, name) for home in (torch, F, operator) for name in (call, call + "_")]
            _KNOWN.update(getattr(home, name) for home, name in homes if hasattr(home, name))
        return kind

    return register


def versions(*names: str) -> list[type]:
    """The modules of these names, which may stand for 1d, 2d and 3d versions.

    >>> versions("Linear", "Conv")[:2]
    [<class 'torch.nn.modules.linear.Linear'>, <class 'torch.nn.modules.conv.Conv1d'>]
    """
    kinds = [getattr(nn, name + suffix, None) for name in names for suffix in ("", "1d", "2d", "3d")]
    return [kind for kind in kinds if kind is not None]


def rule_of(node: fx.Node, network: Network) -> Rule:
    """The rule for a node; the one that keeps all channels where there is none."""
    if node.op in ("placeholder", "get_attr"):
        return Leaf()
    rule = None
    if node.op == "call_module":
        module = network.module(node)
        rule = MODULES.get(type(module)) or network.derived.get(id(module))
        if rule is not None and not (node.all_input_nodes and network.owns(node, rule.parameters)):
            rule = None
    elif node.target is getattr:
        rule = _ATTRIBUTES.get(str(node.args[1]))
    elif node.op == "call_method" or node.target in _KNOWN:
        rule = _CALLS.get(name_of(node).rstrip("_"))
    return Unknown() if rule is None else rule.at(node, network)


def rule_of_module(module: nn.Module) -> Rule:
    """The rule that a module, or one that it is derived from, has by itself: good for what it costs."""
    return next((MODULES[kind] for kind in type(module).__mro__ if kind in MODULES), Unknown())


def derived_rule(module: nn.Module, args: tuple, kwargs: dict) -> Rule | None:
    """The rule of the class that a module's own is derived from, where it treats these arguments alike."""
    kind = next((kind for kind in type(module).__mro__ if kind in MODULES), None)
    if kind is None:
        return None
    try:
        return MODULES[kind].derived(module, kind, args, kwargs)
    except Exception:  # whatever the parent does with what it was never meant for
        return None


def alike_rule(module: nn.Module, args: tuple, kwargs: dict) -> Rule | None:
    """The rule of what a module does on these arguments, whatever its class."""
    for rule in _RULES:
        with contextlib.suppress(Exception):  # whatever it does when it is taken for something else
            if rule.is_alike(module, args, kwargs):
                return rule
    return None
