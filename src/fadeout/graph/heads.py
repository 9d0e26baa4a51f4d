"""Multi-head attention that has lost heads: what ``nn.MultiheadAttention`` becomes when it is cut."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Heads(nn.Module):
    """As ``nn.MultiheadAttention``, with the same parameters by the same names, but of any sizes.

    There, inputs, outputs and all heads together must be equally wide. Here the projections say how wide
    each of them is. Calls and results are the same, for sequences with a batch and without; the weights
    that come with the output are those of the heads that are left, or their mean.

    Args:
        attention: whose parameters to take, after they have been cut.

    >>> attention = nn.MultiheadAttention(4, 2)
    >>> x = torch.randn(3, 1, 4)
    >>> torch.allclose(Heads(attention)(x, x, x)[0], attention(x, x, x)[0], atol=1e-6)
    True
    """

    out_proj: nn.Linear
    in_proj_bias: nn.Parameter | None
    bias_k: nn.Parameter | None
    bias_v: nn.Parameter | None

    def __init__(self, attention: Any):
        super().__init__()
        self.head_dim, self.batch_first = attention.head_dim, attention.batch_first
        self.dropout, self.add_zero_attn = attention.dropout, attention.add_zero_attn
        for name in PARAMETERS:
            self.register_parameter(name, getattr(attention, name))
        self.out_proj = attention.out_proj
        self.embed_dim, width = self.out_proj.weight.shape
        self.out_proj.out_features, self.out_proj.in_features = self.embed_dim, width
        self.num_heads = width // self.head_dim
        self.training = attention.training
        self._qkv_same_embed_dim = False  # so that nn.TransformerEncoderLayer calls it in evaluation mode too

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if is_causal and attn_mask is None:
            raise RuntimeError("is_causal is a hint about attn_mask, which must be given too")
        batched = query.dim() == 3
        sides = [query, key, value]
        if not batched:
            sides = [side.unsqueeze(0) for side in sides]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            sides = [side.transpose(0, 1) for side in sides]
        q, k, v = self._projected(sides)
        mask = self._mask(attn_mask, key_padding_mask, q, k.size(2) - keys_added(self))
        if need_weights:
            scores = (q / math.sqrt(self.head_dim)) @ k.transpose(-2, -1)
            weights = (scores if mask is None else scores + mask).softmax(-1)
            weights = F.dropout(weights, self.dropout, self.training)
            mixed = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if batched else weights.squeeze(0)
        else:
            rate = self.dropout if self.training else 0.0
            mixed, weights = F.scaled_dot_product_attention(q, k, v, mask, rate), None
        output = self.out_proj(mixed.transpose(1, 2).flatten(2))
        if not batched:
            return output.squeeze(0), weights
        return (output if self.batch_first else output.transpose(0, 1)), weights

    def _projected(self, sides: list[Tensor]) -> list[Tensor]:
        """Queries, keys and values as (batch, heads, positions, dimensions)."""
        found = self._project(sides)
        for position, extra in ((1, self.bias_k), (2, self.bias_v)):
            if extra is not None:
                found[position] = torch.cat([found[position], extra.expand(len(found[position]), -1, -1)], 1)
            if self.add_zero_attn:
                found[position] = F.pad(found[position], (0, 0, 0, 1))
        return [one.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for one in found]

    def _project(self, sides: list[Tensor]) -> list[Tensor]:
        return [F.linear(*each) for each in zip(sides, projections(self), biases(self), strict=True)]

    def _mask(self, mask: Tensor | None, padding: Tensor | None, q: Tensor, keys: int) -> Tensor | None:
        """What is added to the scores, for both masks together."""
        found = None if mask is None else _additive(mask, q)
        if found is not None and found.dim() == 3:  # one for each head of each sequence
            found = found.view(-1, self.num_heads, *found.shape[1:])
        if padding is not None:
            ignored = _additive(padding, q).view(-1, 1, 1, keys)
            found = ignored if found is None else found + ignored
        added = keys_added(self)
        return found if found is None or not added else F.pad(found, (0, added))

    def extra_repr(self) -> str:
        return f"{self.num_heads} heads of {self.head_dim}"


PARAMETERS = (
    *("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"),
    *("in_proj_bias", "bias_k", "bias_v"),
)


def keys_added(attention: Any) -> int:
    """How many keys there are besides those that are given."""
    return (attention.bias_k is not None) + attention.add_zero_attn


def projections(attention: Any) -> list[Tensor]:
    """The weights for queries, keys and values, (heads x dimensions, inputs) each."""
    if attention.in_proj_weight is not None:
        return list(attention.in_proj_weight.chunk(3))
    return [attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight]


def biases(attention: Any) -> list[Tensor | None]:
    """Those for queries, keys and values."""
    return [None] * 3 if attention.in_proj_bias is None else list(attention.in_proj_bias.chunk(3))


class SplitHeads(Heads):
    """The same with projections that are layers of their own.

    >>> attention = nn.MultiheadAttention(4, 2)
    >>> x = torch.randn(3, 1, 4)
    >>> torch.allclose(SplitHeads(attention)(x, x, x)[0], attention(x, x, x)[0], atol=1e-6)
    True
    """

    def __init__(self, attention: Any):
        super().__init__(attention)
        sides = zip(projections(self), biases(self), strict=True)
        self.q_proj, self.k_proj, self.v_proj = (_linear(*side) for side in sides)
        self.out_proj = _linear(self.out_proj.weight, self.out_proj.bias)
        for name in PARAMETERS[:5]:
            self.register_parameter(name, None)
        self.train(attention.training)

    def _project(self, sides: list[Tensor]) -> list[Tensor]:
        layers = (self.q_proj, self.k_proj, self.v_proj)
        return [layer(side) for layer, side in zip(layers, sides, strict=True)]


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach(), weight.requires_grad)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach(), bias.requires_grad)
    return layer


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """A mask as numbers to add: true means minus infinity."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -math.inf)
