"""Rules for attention, as a function and as ``nn.MultiheadAttention``: whole heads go."""

import math
from operator import getitem
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from fadeout.graph.analysis import Analysis
from fadeout.graph.editor import Editor
from fadeout.graph.heads import PARAMETERS, Heads, keys_added, projections
from fadeout.graph.network import Network
from fadeout.graph.rules.base import Leaf, Link, Of, Rule, Term, Units, Unknown, alike
from fadeout.graph.rules.calls import argument, name_of, source
from fadeout.graph.rules.pointwise import Softmax
from fadeout.graph.rules.registry import handles


@handles(calls=["scaled_dot_product_attention"])
class Attention(Rule):
    """Scaled dot-product attention on (..., heads, positions, dimensions): whole heads go.

    Where several queries share a head of keys and values (``enable_gqa``), they go together.
    """

    def constants(self, node: fx.Node, a: Analysis) -> None:
        query, key, value = (a.flows.get(one) for one in inputs_of(node))
        heads = len(a.shape(node)) - 3
        if not (query and key and value) or any(f.axis != heads for f in (query, key, value)):
            return
        if key.width == value.width and query.width == a.shape(node)[heads]:
            constant = torch.where(value.constant == 0, 0.0, math.nan)
            a.follow(node, heads, constant.repeat_interleave(query.width // value.width))

    def needs(self, node: fx.Node, a: Analysis) -> None:
        super().needs(node, a)
        mask = self._mask_of_heads(node, a)
        if mask is not None and not self._is_followed(mask, a):
            a.need_all(node)

    def links(self, node: fx.Node, a: Analysis) -> list[Link]:
        query, key, value = inputs_of(node)
        numbers, mask = np.arange(a.flows[node].width), self._mask_of_heads(node, a)
        shared = len(numbers) // a.flows[value].width
        masks = [] if mask is None or not self._is_followed(mask, a) else [alike(mask, node, a)]
        return [alike(query, node, a), *((one, numbers // shared, numbers) for one in (key, value)), *masks]

    def _mask_of_heads(self, node: fx.Node, a: Analysis) -> fx.Node | None:
        """The mask, if each head has its own."""
        mask = argument(node, 3, "attn_mask")
        return mask if isinstance(mask, fx.Node) and a.shape(mask)[-3:-2] not in ((), (1,)) else None

    def _is_followed(self, mask: fx.Node, a: Analysis) -> bool:
        return mask in a.flows and a.flows[mask].axis == len(a.shape(mask)) - 3

    def units(self, node: fx.Node, a: Analysis) -> Units | None:
        return made_by_rows(inputs_of(node)[2], a)

    def terms(self, node: fx.Node, a: Analysis, of: Of) -> list[Term]:
        query, key, _ = (a.shape(one) for one in inputs_of(node))
        heads = a.flows[node].width
        each = (query.numel() + a.shape(node).numel()) // heads * key[-2]
        return [Term(each, (node,))] if of == "operations" else []


@handles(calls=["matmul", "bmm"])
class Product(Rule):
    """A product of matrices for each head: attention that is written out. Without a side, a head is zero."""

    def constants(self, node: fx.Node, a: Analysis) -> None:
        one, other = (a.flows.get(side) for side in self._sides(node))
        if one is None or other is None or one.axis != other.axis or one.width != other.width:
            return
        ranks = {len(a.shape(each)) for each in (node, *self._sides(node))}
        if len(ranks) == 1 and one.axis < ranks.pop() - 2 and a.shape(node)[one.axis] == one.width:
            zero = (one.constant == 0) | (other.constant == 0)
            a.follow(node, one.axis, torch.where(zero, 0.0, math.nan))

    def links(self, node: fx.Node, a: Analysis) -> list[Link]:
        return [alike(side, node, a) for side in self._sides(node)]

    def units(self, node: fx.Node, a: Analysis) -> Units | None:
        weights, value = self._sides(node)
        while a.rules[weights].keeps_alike and not isinstance(a.rules[weights], Softmax):
            weights = source(weights)  # dropout lies between
        return made_by_rows(value, a) if isinstance(a.rules[weights], Softmax) else None

    def terms(self, node: fx.Node, a: Analysis, of: Of) -> list[Term]:
        each = a.shape(node).numel() // a.flows[node].width * a.shape(self._sides(node)[0])[-1]
        return [Term(each, (node,))] if of == "operations" else []

    def _sides(self, node: fx.Node) -> list[fx.Node]:
        return [argument(node, 0, "input"), argument(node, 1, "mat2" if name_of(node) == "bmm" else "other")]


def made_by_rows(value: fx.Node, a: Analysis) -> Units | None:
    """The channels of a value, if it comes out of one layer and is only reshaped since."""
    channels = np.arange(a.flows[value].width)[:, None] if value in a.flows else None
    before = value
    while channels is not None:
        module, rule = a.module(before), a.rules[before]
        if module is not None and rule.filters(module):
            alone = before is not value and len(a.network.sites(before)) == 1
            rows = {f"{before.target}.{name}": channels for name in rule.filters(module)}
            return Units(value, rows, {f"{before.target}.weight": rule.dim(module)}) if alone else None
        links = [link for link in rule.links(before, a) if link[0] in a.flows]
        if len(links) != 1:
            return None
        before, inputs, outputs = links[0]
        each = [np.unique(inputs[np.isin(outputs, of)]) for of in channels]
        if before is not value and len(a.flows[before].needed) < len(each):  # several share what comes before
            value, each = before, list(np.arange(a.flows[before].width)[:, None])
        apart = len(np.unique(np.concatenate(each))) == sum(map(len, each))
        channels = np.stack(each) if apart and len({*map(len, each)}) == 1 else None
    return None


@handles(nn.MultiheadAttention, Heads)
class HeadedAttention(Rule):
    """A head goes if its values are zero, or if its columns of the last projection are.

    Inputs that no head reads go too. What is followed at the node of the module are its heads; the channels
    of the output are those of :class:`AttentionOutput`. Since ``nn.MultiheadAttention`` insists on equal
    widths, what is left of it is a :class:`fadeout.graph.heads.Heads`.

    All heads stay where a mask is given for each of them. The module stays whole where the weights of
    attention are used, since they are the mean over all heads, where it is called twice, where it has hooks,
    and inside ``nn.TransformerEncoderLayer`` and its like, which the tracing does not look into.
    """

    parameters = ("weight", "bias", *PARAMETERS)

    def at(self, node: fx.Node, network: Network) -> Rule:
        return Unknown() if output_of(node, network) is None else self

    def of_item(self, node: fx.Node) -> Rule:
        return AttentionOutput() if node.args[1] == 0 else Leaf()  # else weights that nobody uses

    def constants(self, node: fx.Node, a: Analysis) -> None:
        module = a.module(node)
        reads, value = _reads(node, a)[2], a.flows.get(inputs_of(node)[2])
        inputs = torch.ones(reads.shape[1]).bool() if value is None else value.constant != 0
        speaks = (reads & inputs).any(1)
        width = len(speaks) * module.head_dim
        for bias in (module.in_proj_bias, module.bias_v):
            if bias is not None and a.dead is None:  # that of the values comes last
                speaks = speaks | bias.detach().cpu().flatten()[-width:].view(len(speaks), -1).any(1)
        if a.dead is not None and str(node.target) in a.dead:
            speaks = ~a.dead[str(node.target)]
        a.follow(node, 0, torch.where(speaks, math.nan, 0.0))

    def needs(self, node: fx.Node, a: Analysis) -> None:
        inputs, heads = inputs_of(node), a.flows[node].needed
        for one in node.all_input_nodes:
            if one not in inputs:
                a.need_all(one)
        mask = argument(node, 5, "attn_mask")
        if isinstance(mask, fx.Node) and len(a.shape(mask)) > 2:
            a.need_all(node)
        for one, reads in zip(inputs, _reads(node, a), strict=True):
            flow = a.flows.get(one)
            if flow is None or flow.axis != len(a.shape(one)) - 1:
                a.need_all(one)
            else:
                a.grow(one, (reads & heads[:, None]).any(0) & (flow.constant != 0))
        if a.module(node).in_proj_weight is not None:  # one matrix: all three lose the same columns
            a.tie(inputs[0], inputs[1])
            a.tie(inputs[1], inputs[2])

    def cut(self, node: fx.Node, e: Editor) -> None:
        output = output_of(node, e.analysis.network)
        outputs, heads = None if output is None else e.kept(output), e.kept(node)
        columns = [e.kept(one) for one in inputs_of(node)]
        if heads is None and outputs is None and all(kept is None for kept in columns):
            return
        module = e.module(node)
        width, size = module.out_proj.in_features, module.head_dim
        heads = torch.arange(width // size) if heads is None else heads
        rows = (heads[:, None] * size + torch.arange(size)).view(-1)
        three = torch.cat([rows, rows + width, rows + 2 * width])
        e.slice(node, "in_proj_weight", _grid(three, columns[0]))
        for letter, kept in zip("qkv", columns, strict=True):
            e.slice(node, f"{letter}_proj_weight", _grid(rows, kept))
        e.slice(node, "in_proj_bias", (three,))
        e.slice(node, "bias_k", (..., rows))
        e.slice(node, "bias_v", (..., rows))
        outputs = torch.arange(module.out_proj.out_features) if outputs is None else outputs
        e.slice(node, "out_proj.weight", _grid(outputs, rows))
        e.slice(node, "out_proj.bias", (outputs,))
        e.replace(node, Heads(module))

    def units(self, node: fx.Node, a: Analysis) -> Units | None:
        """The rows for the values: a head that has none says nothing."""
        module = a.module(node)
        if module.bias_v is not None:
            return None
        width = module.out_proj.in_features
        rows = np.arange(width).reshape(-1, module.head_dim)
        fused = module.in_proj_weight is not None
        weight = ("in_proj_weight", rows + 2 * width) if fused else ("v_proj_weight", rows)
        bias = [] if module.in_proj_bias is None else [("in_proj_bias", rows + 2 * width)]
        return Units(node, {f"{node.target}.{name}": each for name, each in (weight, *bias)})

    def terms(self, node: fx.Node, a: Analysis, of: Of) -> list[Term]:
        """Those of the projections, and of the products of queries, keys and values."""
        module, output, size = a.module(node), output_of(node, a.network), a.module(node).head_dim
        terms = []
        for end in [*inputs_of(node), *([] if output is None else [output])]:
            shape, flow = a.shape(end), a.flows.get(end)
            factor = size * (shape.numel() // shape[-1] if of == "operations" else 1)
            followed = flow is not None and flow.axis == len(shape) - 1
            terms.append(Term(factor, (node, end)) if followed else Term(factor * shape[-1], (node,)))
        if of == "operations":
            query, key, _ = (a.shape(one) for one in inputs_of(node))
            keys = key[0 if len(key) > 2 and not module.batch_first else -2] + keys_added(module)
            terms.append(Term(2 * size * keys * (query.numel() // query[-1]), (node,)))
        else:
            if module.in_proj_bias is not None:
                terms.append(Term(3 * size, (node,)))
            if output is not None and output in a.flows and module.out_proj.bias is not None:
                terms.append(Term(1, (output,)))
        return terms


class AttentionOutput(Rule):
    """What comes out of the last projection: ``attention(...)[0]``."""

    def constants(self, node: fx.Node, a: Analysis) -> None:
        lives = (self._reads(node, a) & (a.flows[source(node)].constant != 0)).any(1)
        bias = a.module(source(node)).out_proj.bias
        constant = torch.zeros(len(lives)) if bias is None else bias.detach().cpu()
        a.follow(node, len(a.shape(node)) - 1, torch.where(lives, math.nan, constant.double()))

    def needs(self, node: fx.Node, a: Analysis) -> None:
        flow, reads = a.flows.get(node), self._reads(node, a)
        needed = reads.any(0) if flow is None else (reads & flow.needed[:, None]).any(0)
        a.grow(source(node), needed & (a.flows[source(node)].constant != 0))

    def _reads(self, node: fx.Node, a: Analysis) -> Tensor:
        """Which output reads which head."""
        module = a.module(source(node))
        return a.once((node, "reads"), lambda: _by_heads(module.out_proj.weight.T, module, a).T)


def output_of(node: fx.Node, network: Network) -> fx.Node | None:
    """The output of an attention; None where the module must stay as it is."""
    module = network.module(node)
    if len(network.sites(node)) > 1 or module._forward_hooks or module._forward_pre_hooks:
        return None
    if any(user.target is not getitem for user in node.users):
        return None
    outputs = [user for user in node.users if user.args[1] == 0]
    others = [user for user in node.users if user.args[1] != 0 and user.users]
    silent = argument(node, 4, "need_weights", True) is False  # then the other is always None
    return outputs[0] if len(outputs) == 1 and (silent or not others) else None


def inputs_of(node: fx.Node) -> list[fx.Node]:
    """Query, key and value."""
    return [argument(node, position, name) for position, name in enumerate(("query", "key", "value"))]


def _reads(node: fx.Node, a: Analysis) -> list[Tensor]:
    """For queries, keys and values, which head reads which input."""
    module = a.module(node)
    return a.once((node, "reads"), lambda: [_by_heads(one, module, a) for one in projections(module)])


def _by_heads(weight: Tensor, module: Any, a: Analysis) -> Tensor:
    """Of a matrix with a row for each dimension of each head, where a head has anything but zeros."""
    there = weight.detach().cpu() != 0 if a.dead is None else torch.ones(weight.shape, dtype=torch.bool)
    return there.unflatten(0, (-1, module.head_dim)).any(1)


def _grid(rows: Tensor, columns: Tensor | None) -> tuple:
    return (rows,) if columns is None else (rows[:, None], columns[None])
