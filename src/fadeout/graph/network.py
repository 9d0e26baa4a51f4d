"""A traced network: its graph, the shape of every value in it, and the rule of every operator."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from fadeout.graph.example import Example
from fadeout.graph.outputs import replays
from fadeout.torch_bridge.modes import still

if TYPE_CHECKING:  # rules are written in terms of networks
    from fadeout.graph.rules.base import Rule


@dataclass(eq=False)
class Network:
    """A traced network with the shape of every value in it, as :func:`fadeout.graph.trace.trace` makes it."""

    model: nn.Module
    example: Example
    graph: fx.Graph
    shapes: dict[fx.Node, torch.Size]
    modules: dict[str, nn.Module]
    callers: dict[int, list[fx.Node]]
    """By the id of a module, the nodes that call it."""
    entangled: set[int]
    """Ids of modules that share a parameter, or whose parameters the forward reads for itself."""
    follows_training: dict[fx.Node, list[tuple[int | str, Any, Any]]] | None
    """Arguments that depend on the mode: position or name, value in evaluation, value in training.

    None where the two modes differ in more than arguments, or where what the forward returns cannot be made
    by a graph: then the user's own forward must stay.
    """
    constants: dict[str, Tensor] = field(default_factory=dict)
    """Tensors in the graph that are neither parameters nor buffers."""
    derived: "dict[int, Rule]" = field(default_factory=dict)
    """By the id of a module, its rule, where its class has none."""
    leaves: set[int] = field(default_factory=set)  # ids of modules that the user wants to stay whole
    overwritten: set[fx.Node] = field(default_factory=set)
    """Values that an operation changes in place although others read them too: not to be followed."""
    rules: "dict[fx.Node, Rule]" = field(default_factory=dict)
    _computed: dict[Any, Any] = field(default_factory=dict)

    @property
    def rewritable(self) -> bool:
        """Whether a graph can stand in for the forward: in both modes, and for inputs of other sizes."""
        return self.follows_training is not None and self.holds

    @property
    def holds(self) -> bool:
        """Whether the graph is right for other sizes of inputs, which the forward may make numbers of."""
        return self.once("holds", lambda: replays(self.model, self.graph, self.constants, self.example))

    def module(self, node: fx.Node) -> Any:
        """The module that a node calls; None where it calls a function."""
        return self.modules[str(node.target)] if node.op == "call_module" else None

    def key(self, node: fx.Node) -> str:
        """The name of a value's channels: of the module that a node calls, or of the node.

        A module without parameters that is called several times has other channels in each call.
        """
        if node.op != "call_module":
            return node.name
        shared = len(self.sites(node)) > 1 and next(self.module(node).parameters(), None) is None
        return f"{node.target} ({node.name})" if shared else str(node.target)

    def once(self, key: Any, compute: Callable[[], Any]) -> Any:
        """Compute something that no weight has a part in once for all analyses, and keep it."""
        if key not in self._computed:
            self._computed[key] = compute()
        return self._computed[key]

    def sites(self, node: fx.Node) -> list[fx.Node]:
        """All nodes that call the same module as this one."""
        return self.callers[id(self.module(node))]

    def owns(self, node: fx.Node, names: tuple[str, ...]) -> bool:
        """Whether nobody else uses the parameters of a module, and nothing computes them."""
        with still(self.module(node)):  # a spectral norm changes with every look in training mode
            for module in self.module(node).modules():
                own = (getattr(module, name, None) for name in names)
                computed = any(isinstance(one, Tensor) and not isinstance(one, nn.Parameter) for one in own)
                if id(module) in self.entangled or computed:
                    return False
        return True
