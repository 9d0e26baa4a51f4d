"""A copy of a network from which the rules cut what nobody needs."""

import copy
import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from fadeout.compaction.plan import Plan
from fadeout.graph.analysis import Analysis
from fadeout.graph.gather import Place


class Surgery:
    """A copy of the network from which the rules cut what nobody needs."""

    def __init__(self, analysis: Analysis, biases: Iterable[str] = ()):
        self.analysis, self._biases = analysis, list(biases)
        self.model = copy.deepcopy(analysis.network.model)
        self.cuts: dict[str, tuple] = {}  # parameter or buffer -> what stays of it
        self._was: dict[str, torch.Size] = {}  # the same -> its shape before, if that has changed
        self.renamed: dict[str, str] = {}  # module -> where it is now
        self._places: dict[tuple[fx.Node, fx.Node], Place] = {}  # on the way from one node to another
        self._calls: dict[fx.Node, tuple[Any, tuple]] = {}  # node -> new target and arguments
        for name in self._biases:
            module: Any = self.model.get_submodule(name)
            module.bias = nn.Parameter(
                module.weight.new_zeros(
                    module.out_features if isinstance(module, nn.Linear) else module.out_channels
                )
            )
        done = set[int]()
        for node, rule in analysis.rules.items():
            if node.op == "call_module":
                if id(analysis.network.module(node)) in done:
                    continue
                done.add(id(analysis.network.module(node)))
            rule.cut(node, self)

    # What the rules use

    def module(self, node: fx.Node) -> Any:
        """The copy of the module that a node calls."""
        return self.model.get_submodule(str(node.target))

    def kept(self, node: fx.Node) -> Tensor | None:
        """The channels of a value that stay; None where all do."""
        flow = self.analysis.flows.get(node)
        return None if flow is None or bool(flow.needed.all()) else flow.kept

    def slice(self, node: fx.Node, name: str, index: tuple) -> None:
        """Keep only the indexed part of a parameter or buffer, if the module has it."""
        inner, _, leaf = name.rpartition(".")
        module = self.module(node).get_submodule(inner)
        old = getattr(module, leaf, None)
        if old is None:
            return
        new = old.detach()[on_device(index, old)].clone()
        setattr(module, leaf, nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new)
        self.cuts[f"{node.target}.{name}"] = index
        if new.shape != old.shape and not (name == "bias" and str(node.target) in self._biases):
            self._was[f"{node.target}.{name}"] = old.shape

    def replace(self, node: fx.Node, module: nn.Module) -> None:
        """Put another module in the place of one."""
        self.model.set_submodule(str(node.target), module)

    def set_bias(self, node: fx.Node, bias: Tensor) -> None:
        """Give the module a bias of these values, before it is sliced."""
        module = self.module(node)
        if module.bias is None:
            self._biases.append(str(node.target))
        module.bias = nn.Parameter(bias.to(module.weight), module.weight.requires_grad)

    def call(self, node: fx.Node, target: Any, args: tuple) -> None:
        """Replace a call in the forward."""
        self._calls[node] = target, args

    def arguments(self, node: fx.Node, args: tuple) -> None:
        """Replace the arguments of a call in the forward."""
        self.call(node, node.target, args)

    def place(self, side: fx.Node, node: fx.Node) -> None:
        """On the way from ``side`` to ``node``, put the channels of the one into those of the other."""
        before, after = self.analysis.flows[side], self.analysis.flows[node]
        if torch.equal(before.needed, after.needed):
            return
        position = torch.where(before.needed, before.needed.cumsum(0) - 1, -1)
        types = [p.dtype for p in self.model.parameters() if p.is_floating_point()]
        constant = before.constant.nan_to_num(0.0).to(types[0] if types else torch.get_default_dtype())
        axis = before.axis - len(self.analysis.shape(side))  # from the end: sides may have fewer dimensions
        self._places[side, node] = Place(
            position[after.kept],
            constant[after.kept],
            width=int(before.needed.sum()),
            axis=len(self.analysis.shape(side)) + axis,
        )

    # The result

    def plan(self) -> Plan:
        """What was done, as plain data."""
        flows = {node.name: flow for node, flow in self.analysis.flows.items() if not flow.needed.all()}
        known = {name: flow.constant.nan_to_num(0.0) for name, flow in flows.items()}
        return Plan(
            inputs=[
                {"shape": list(one.shape), "dtype": str(one.dtype).removeprefix("torch.")}
                for one in self.analysis.network.inputs
            ],
            kept={name: flow.kept.tolist() for name, flow in flows.items()},
            constants={
                name: {str(int(c)): float(values[c]) for c in values.nonzero().squeeze(1)}
                for name, values in known.items()
                if values.any()
            },
            biases=self._biases,
            keep_forward=self.analysis.keep_forward,
            couple=self.analysis.couple,
            was={self.name_now(name): list(shape) for name, shape in self._was.items()},
            parameters=sum(p.numel() for p in self.analysis.network.model.parameters()),
        )

    def name_now(self, name: str) -> str:
        """The name of a parameter or buffer in the smaller module."""
        module, _, leaf = name.rpartition(".")
        return f"{self.renamed[module]}.{leaf}" if module in self.renamed else name

    @property
    def needs_new_forward(self) -> bool:
        """Whether the user's ``forward`` cannot run what is left."""
        return bool(self._calls) or any(not self._can_wrap(*edge) for edge in self._places)

    def finish(self) -> nn.Module:
        """The smaller module."""
        device = next(iter(self.model.parameters()), torch.empty(0)).device
        for place in self._places.values():
            place.to(device)
        if self.needs_new_forward:
            return self._rewritten()
        for (side, node), place in self._places.items():
            # a module whose only reader wants its channels placed can do so itself, or else the reader can
            inner = side if self._is_own(side) and len(side.users) == 1 else node
            name, module = str(inner.target), self.module(inner)
            place.train(module.training)
            order = (module, place) if inner is side else (place, module)
            self.model.set_submodule(name, nn.Sequential(*order).train(module.training))
            before = self.renamed.get(name, name).removeprefix(name)  # it may have a Place on either side
            self.renamed[name] = f"{name}.{0 if inner is side else 1}{before}"
        return self.model

    def _can_wrap(self, side: fx.Node, node: fx.Node) -> bool:
        return (self._is_own(side) and len(side.users) == 1) or self._is_own(node)

    def _is_own(self, node: fx.Node) -> bool:
        """Whether a node calls a module that no other node calls."""
        return node.op == "call_module" and len(self.analysis.network.sites(node)) == 1

    def _rewritten(self) -> fx.GraphModule:
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        output = graph.graph_copy(self.analysis.network.graph, copies)
        graph.output(output)
        names = (name for i in itertools.count() if not hasattr(self.model, name := f"place_{i}"))
        for ((side, node), place), name in zip(list(self._places.items()), names, strict=False):
            self.model.add_module(name, place.train(self.model.training))
            with graph.inserting_before(copies[node]):
                placed = graph.call_module(name, (copies[side],))
            copies[node].replace_input_with(copies[side], placed)
        for node, (target, args) in self._calls.items():
            new = copies[node]
            new.op, new.target, new.kwargs = "call_function" if callable(target) else new.op, target, {}
            new.args = map_arg(args, lambda one: copies[one])
        self._follow_training(graph, copies)
        small = fx.GraphModule(self.model, graph, class_name=type(self.model).__name__)
        for name, module in small.named_modules():
            module.training = self.model.get_submodule(name).training
        return small

    def _follow_training(self, graph: fx.Graph, copies: dict[fx.Node, fx.Node]) -> None:
        """What the trace took from ``self.training`` is read from it again."""
        following = self.analysis.network.follows_training
        if not following:
            return
        with graph.inserting_before(next(iter(graph.nodes))):
            training = graph.create_node("get_attr", "training")
        for node, places in following.items():
            for place, in_evaluation, in_training in places:
                with graph.inserting_before(copies[node]):
                    chosen = graph.call_function(choose_by_mode, (training, in_training, in_evaluation))
                if isinstance(place, int):
                    copies[node].update_arg(place, chosen)
                else:
                    copies[node].update_kwarg(place, chosen)


def choose_by_mode(training: bool, in_training: Any, in_evaluation: Any) -> Any:
    """One of two values, by the mode of the module."""
    return in_training if training else in_evaluation


def on_device(index: tuple, tensor: Tensor) -> tuple:
    """An index for a tensor, on its device."""
    return tuple(one.to(tensor.device) if isinstance(one, Tensor) else one for one in index)
