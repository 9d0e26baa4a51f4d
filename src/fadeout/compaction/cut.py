"""A copy of a network from which the rules cut what nobody needs."""

import itertools
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from fadeout.compaction.align import align
from fadeout.compaction.fold import fold as fold_norm
from fadeout.compaction.fold import foldable
from fadeout.compaction.plan import Plan
from fadeout.graph.analysis import Analysis
from fadeout.graph.example import as_data
from fadeout.graph.gather import Gather
from fadeout.graph.kept import copied
from fadeout.graph.sizes import Attribute, attribute_of
from fadeout.torch_bridge.parameters import clean
from fadeout.torch_bridge.retracing import Retracer
from fadeout.torch_bridge.submodules import replaced


@dataclass(frozen=True)
class Cut:
    """A smaller network, and how it came out of the larger one."""

    model: nn.Module
    plan: Plan
    slices: dict[str, tuple]
    """By the name of a parameter or buffer before, the index of what stays of it."""
    renamed: dict[str, str]
    """By the name of a module before, its name now, if that has changed."""
    rewritten: bool
    """Whether the user's ``forward`` could not run what is left."""

    def name_now(self, name: str) -> str:
        """The name of a parameter or buffer in the smaller network."""
        return _name_now(name, self.renamed)


def cut(analysis: Analysis, fold: bool = False, rewrite: bool = False) -> Cut:
    """Cut what nobody needs out of a copy of the network.

    Args:
        analysis: what is needed.
        fold: for inference: batch-norms become part of the layers before them, where they can, and channels
            lie in an order in which gathers move as few as they can.
        rewrite: the forward becomes that of the graph even where no call in it changes.
    """
    editor = _edit(analysis)
    if fold and editor.gathers:
        align(analysis, editor.gathers)
        editor = _edit(analysis)
    device = next(iter(editor.model.parameters()), torch.empty(0)).device
    for gather in editor.gathers.values():
        gather.to(device)
    kept = editor.set_attributes()
    rewritten = (
        rewrite
        or bool(editor.calls.keys() - kept)
        or any(_wrapped(*edge, analysis) is None for edge in editor.gathers)
    )
    renamed = {} if rewritten else _wrap(editor)
    small = _rewrite(editor) if rewritten else editor.model
    folded = foldable(analysis, renamed) if fold else {}
    for layer, norm in folded.items():
        fold_norm(small, layer, norm)
    folded = {clean(small, layer): clean(small, norm) for layer, norm in folded.items()}
    return Cut(small, _plan(editor, renamed, folded, rewrite), editor.slices, renamed, rewritten)


def _edit(analysis: Analysis) -> "_Editor":
    """What the rules change, each module once."""
    editor, done = _Editor(analysis), set[int]()
    for node, rule in analysis.rules.items():
        module = analysis.module(node)
        if module is None or id(module) not in done:
            done.add(id(module))
            rule.cut(node, editor)
    return editor


class _Editor:
    """What the rules have changed so far; see :class:`fadeout.graph.rules.base.Editor`."""

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
        return self.model.get_submodule(str(node.target))

    def kept(self, node: fx.Node) -> Tensor | None:
        flow = self.analysis.flows.get(node)
        return None if flow is None or not flow.changes else flow.kept

    def slice(self, node: fx.Node, name: str, index: tuple) -> None:
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
        self.model = replaced(self.model, {self.module(node): module})

    def set_bias(self, node: fx.Node, bias: Tensor) -> None:
        module = self.module(node)
        if module.bias is None:
            self.biases.append(str(node.target))
        module.bias = nn.Parameter(bias.to(module.weight), module.weight.requires_grad)

    def call(self, node: fx.Node, target: Any, args: tuple, attribute: Any = None, value: int = 0) -> None:
        self.calls[node] = target, args
        if attribute is not None:
            self.attributes[node] = attribute, value

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

    def gather(self, side: fx.Node, node: fx.Node) -> None:
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


def _name_now(name: str, renamed: dict[str, str]) -> str:
    module, _, leaf = name.rpartition(".")
    return f"{renamed[module]}.{leaf}" if module in renamed else name


def _plan(editor: _Editor, renamed: dict[str, str], folded: dict[str, str], rewrite: bool) -> Plan:
    analysis = editor.analysis
    flows = {node.name: flow for node, flow in analysis.flows.items() if flow.changes}
    known = {name: flow.constant.nan_to_num(0.0) for name, flow in flows.items()}
    return Plan(
        inputs=[as_data(one) for one in analysis.network.example.args],
        keywords={name: as_data(one) for name, one in analysis.network.example.kwargs.items()},
        kept={name: flow.kept.tolist() for name, flow in flows.items()},
        constants={
            name: {str(int(c)): float(values[c]) for c in values.nonzero().squeeze(1)}
            for name, values in known.items()
            if values.any()
        },
        biases=editor.biases,
        keep_forward=analysis.keep_forward,
        couple=analysis.couple,
        was={_name_now(name, renamed): list(shape) for name, shape in editor.was.items()},
        parameters=sum(p.numel() for p in analysis.network.model.parameters()),
        folded=folded,
        rewrite=rewrite,
    )


def _wrapped(side: fx.Node, node: fx.Node, analysis: Analysis) -> fx.Node | None:
    """Whose module can have a gather beside it: the side's, if nobody else reads it, or the reader's."""

    def is_own(one: fx.Node) -> bool:
        return one.op == "call_module" and len(analysis.network.sites(one)) == 1

    if is_own(side) and len(side.users) == 1:
        return side
    return node if is_own(node) else None


def _wrap(editor: _Editor) -> dict[str, str]:
    """Put each gather beside a module; returns the new names of these modules."""
    renamed: dict[str, str] = {}
    for (side, node), gather in editor.gathers.items():
        inner = _wrapped(side, node, editor.analysis)
        assert inner is not None
        name, module = str(inner.target), editor.module(inner)
        gather.train(module.training)
        order = (module, gather) if inner is side else (gather, module)
        replaced(editor.model, {module: nn.Sequential(*order).train(module.training)})
        before = renamed.get(name, name).removeprefix(name)  # it may have a gather on either side
        renamed[name] = f"{name}.{0 if inner is side else 1}{before}"
    return renamed


def _rewrite(editor: _Editor) -> fx.GraphModule:
    """A module whose forward has the gathers and the new calls in it."""
    model, graph, copies = editor.model, fx.Graph(tracer_cls=Retracer), dict[fx.Node, fx.Node]()
    for name, constant in editor.analysis.network.constants.items():
        model.register_buffer(name, constant.detach().clone(), persistent=False)
    graph.output(graph.graph_copy(editor.analysis.network.graph, copies))
    # the names are those of the state dicts, and of the files, from the first version on
    names = (name for i in itertools.count() if not hasattr(model, name := f"place_{i}"))
    for ((side, node), gather), name in zip(list(editor.gathers.items()), names, strict=False):
        model.add_module(name, gather.train(model.training))
        with graph.inserting_before(copies[node]):
            gathered = graph.call_module(name, (copies[side],))
        copies[node].replace_input_with(copies[side], gathered)
    for node, (target, args) in editor.calls.items():
        new = copies[node]
        new.op, new.target, new.kwargs = "call_function" if callable(target) else new.op, target, {}
        new.args = map_arg(args, lambda one: copies[one])
    _follow_training(editor.analysis.network.follows_training or {}, graph, copies)
    small = fx.GraphModule(model, graph, class_name=type(model).__name__)
    for name, module in small.named_modules():
        module.training = model.get_submodule(name).training
    return small


def _follow_training(following: dict, graph: fx.Graph, copies: dict[fx.Node, fx.Node]) -> None:
    """Read from ``self.training`` again what the trace took from it."""
    if not following:
        return
    with graph.inserting_before(next(iter(graph.nodes))):
        training = graph.create_node("get_attr", "training")
    for node, arguments in following.items():
        for key, in_evaluation, in_training in arguments:
            with graph.inserting_before(copies[node]):
                chosen = graph.call_function(choose_by_mode, (training, in_training, in_evaluation))
            if isinstance(key, int):
                copies[node].update_arg(key, chosen)
            else:
                copies[node].update_kwarg(key, chosen)


def choose_by_mode(training: bool, in_training: Any, in_evaluation: Any) -> Any:
    """One of two values, by the mode of the module."""
    return in_training if training else in_evaluation


def on_device(index: tuple, tensor: Tensor) -> tuple:
    """An index for a tensor, on its device."""
    return tuple(one.to(tensor.device) if isinstance(one, Tensor) else one for one in index)
