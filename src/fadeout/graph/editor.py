"""A copy of a network that is being cut: what the rules may do to it."""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from fadeout.graph.analysis import Analysis
from fadeout.graph.gather import Gather
from fadeout.graph.side_effects import copied
from fadeout.graph.sizes import Attribute, attribute_of
from fadeout.torch_bridge.submodules import replaced


class Editor:
    """The copy, and what the rules have changed so far."""

    def __init__(self, analysis: Analysis):
        self.analysis = analysis
        self.model = copied(analysis.network.model)
        self.slices: dict[str, tuple] = {}
        self.was: dict[str, torch.Size] = {}  # by the names of parameters and buffers, shapes that changed
        self.biases: list[str] = []  # modules that got one
        self.gathers: dict[tuple[fx.Node, fx.Node], Gather] = {}  # on the way from one node to another
        self.calls: dict[fx.Node, tuple[Any, tuple]] = {}  # node -> new target and arguments
        self.attributes: dict[fx.Node, tuple[Attribute, int]] = {}  # node -> what would do instead

    def module(self, node: fx.Node) -> Any:
        """The copy of the module that a node calls."""
        return self.model.get_submodule(str(node.target))

    def kept(self, node: fx.Node) -> Tensor | None:
        """The channels of a value that stay; None where all do."""
        flow = self.analysis.flows.get(node)
        return None if flow is None or not flow.changes else flow.kept

    def slice(self, node: fx.Node, name: str, index: tuple) -> None:
        """Keep only the indexed part of a parameter or buffer, if the module has it."""
        inner, _, leaf = name.rpartition(".")
        module = self.module(node).get_submodule(inner)
        old = getattr(module, leaf, None)
        if old is None:
            return
        new = old.detach()[on_device(index, old)].clone()
        setattr(module, leaf, nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new)
        self.slices[f"{node.target}.{name}"] = index
        if new.shape != old.shape and not (name == "bias" and str(node.target) in self.biases):
            self.was[f"{node.target}.{name}"] = old.shape

    def replace(self, node: fx.Node, module: nn.Module) -> None:
        """Replace the module that a node calls."""
        self.model = replaced(self.model, {self.module(node): module})

    def set_bias(self, node: fx.Node, bias: Tensor) -> None:
        """Give the module a bias of these values, before it is sliced."""
        module = self.module(node)
        if module.bias is None:
            self.biases.append(str(node.target))
        module.bias = nn.Parameter(bias.to(module.weight), module.weight.requires_grad)

    def call(self, node: fx.Node, target: Any, args: tuple, attribute: Any = None, value: int = 0) -> None:
        """Replace a call in the forward; or where a new value of an attribute does the same, set that."""
        self.calls[node] = target, args
        if attribute is not None:
            self.attributes[node] = attribute, value

    def gather(self, side: fx.Node, node: fx.Node) -> None:
        """On the way from ``side`` to ``node``, gather the channels of the other from those of the one."""
        before, after = self.analysis.flows[side], self.analysis.flows[node]
        if torch.equal(before.kept, after.kept):
            return
        position = torch.full_like(before.needed, -1, dtype=torch.long)
        position[before.kept] = torch.arange(len(before.kept))
        types = [p.dtype for p in self.model.parameters() if p.is_floating_point()]
        constant = before.constant.nan_to_num(0.0).to(types[0] if types else torch.get_default_dtype())
        width = len(before.kept)
        self.gathers[side, node] = Gather(
            position[after.kept], constant[after.kept], width=width, axis=before.axis
        )

    def set_attributes(self) -> set[fx.Node]:
        """Change the numbers that modules keep, where all that read them agree; returns who does."""
        readers = defaultdict[Attribute, set[fx.Node]](set)
        for node in self.analysis.network.graph.nodes:
            for one in pytree.tree_leaves((node.args, node.kwargs)):
                if (attribute := attribute_of(one)) is not None:
                    readers[attribute].add(node)
        asked = defaultdict[Attribute, dict[fx.Node, int]](dict)
        for node, (attribute, value) in self.attributes.items():
            asked[attribute][node] = value
        agreed = [one for one, by in asked.items() if by.keys() == readers[one] and len({*by.values()}) == 1]
        for attribute in agreed:
            value = next(iter(asked[attribute].values()))
            setattr(self.model.get_submodule(attribute.module), attribute.name, value)
        return {node for attribute in agreed for node in asked[attribute]}


def edit(analysis: Analysis) -> Editor:
    """What the rules cut, each module once."""
    editor, done = Editor(analysis), set[int]()
    for node, rule in analysis.rules.items():
        module = analysis.module(node)
        if module is None or id(module) not in done:
            done.add(id(module))
            rule.cut(node, editor)
    return editor


def on_device(index: tuple, tensor: Tensor) -> tuple:
    """An index for a tensor, on its device."""
    return tuple(one.to(tensor.device) if isinstance(one, Tensor) else one for one in index)
