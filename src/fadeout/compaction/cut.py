"""A copy of a network from which the rules cut what nobody needs."""

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import map_arg

from fadeout.compaction.align_gathers import align
from fadeout.compaction.fold import fold as fold_norm
from fadeout.compaction.fold import foldable
from fadeout.compaction.plan import Plan
from fadeout.graph.analysis import Analysis
from fadeout.graph.editor import Editor, edit
from fadeout.graph.example import as_data
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
    editor = edit(analysis)
    if fold and editor.gathers:
        align(analysis, editor.gathers)
        editor = edit(analysis)
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


def _name_now(name: str, renamed: dict[str, str]) -> str:
    module, _, leaf = name.rpartition(".")
    return f"{renamed[module]}.{leaf}" if module in renamed else name


def _plan(editor: Editor, renamed: dict[str, str], folded: dict[str, str], rewrite: bool) -> Plan:
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


def _wrap(editor: Editor) -> dict[str, str]:
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


def _rewrite(editor: Editor) -> fx.GraphModule:
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
