"""Batch-norms become part of the layer before them: in evaluation mode both are one weighted sum."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

from fadeout.graph.analysis import Analysis
from fadeout.graph.rules.base import equal
from fadeout.graph.rules.calls import source, wide_copy
from fadeout.graph.rules.registry import versions

_NORMS = {*versions("BatchNorm"), nn.SyncBatchNorm}
_TRANSPOSED = set(versions("ConvTranspose"))
_LAYERS = {nn.Linear, *versions("Conv"), *_TRANSPOSED}


def foldable(analysis: Analysis, renamed: Mapping[str, str]) -> dict[str, str]:
    """By the name of a layer, that of the batch-norm behind it, where nothing else reads what is between.

    Args:
        analysis: by which the network was cut.
        renamed: by the name of a module before, its name now, if that has changed.
    """
    pairs = ((str(layer.target), str(norm.target)) for layer, norm in _pairs(analysis))
    return {renamed.get(layer, layer): renamed.get(norm, norm) for layer, norm in pairs}


def _pairs(analysis: Analysis) -> Iterator[tuple[fx.Node, fx.Node]]:
    network = analysis.network
    for norm in network.graph.nodes:
        layer = source(norm) if norm.all_input_nodes else norm
        one, other = network.module(layer), network.module(norm)
        if type(one) not in _LAYERS or not isinstance(other, _BatchNorm) or other.running_var is None:
            continue
        alone = len(layer.users) == len(network.sites(layer)) == len(network.sites(norm)) == 1
        own = all(network.owns(node, ("weight", "bias")) for node in (layer, norm))
        seen = any((*module._forward_hooks, *module._forward_pre_hooks) for module in (one, other))
        fits = _same_axis(layer, analysis) and _same_channels(layer, norm, analysis)
        if alone and own and not seen and fits and _rest(other) is not None:
            yield layer, norm


def _same_axis(layer: fx.Node, analysis: Analysis) -> bool:
    """Whether the channels that the layer makes lie where a batch-norm looks for them."""
    module = analysis.module(layer)
    if isinstance(module, nn.Linear):
        return len(analysis.shape(layer)) == 2
    plain = type(module) not in _TRANSPOSED or module.groups == 1  # else stored by its inputs, in groups
    return plain and len(analysis.shape(layer)) == len(module.kernel_size) + 2


def _same_channels(layer: fx.Node, norm: fx.Node, analysis: Analysis) -> bool:
    """Whether no channels are gathered in between."""
    before, after = analysis.flows.get(layer), analysis.flows.get(norm)
    return before is None or after is None or torch.equal(before.needed, after.needed)


@torch.no_grad()
def _rest(norm: Any) -> nn.Module | None:
    """What a batch-norm does besides: nothing, or what its children do, in turn; None where it is more."""
    if type(norm) in _NORMS:
        return nn.Identity()
    children = list(norm.children())
    if any(child.state_dict() for child in children) or any(tensor.is_meta for tensor in norm.buffers()):
        return None
    twin = wide_copy(norm)
    rest = nn.Sequential(*twin.children())
    dims = 3 if isinstance(norm, nn.BatchNorm3d) else 0 if isinstance(norm, nn.BatchNorm1d) else 2
    x = torch.linspace(-3, 3, 5 * norm.num_features).double().view(5, -1, *[1] * dims)
    plain = F.batch_norm(x, twin.running_mean, twin.running_var, twin.weight, twin.bias, eps=norm.eps)
    return nn.Sequential(*children) if equal(twin(x), rest(plain)) else None


@torch.no_grad()
def fold(model: nn.Module, layer: str, norm: str) -> None:
    """Make a batch-norm part of the layer before it, in place.

    Where it has an activation of its own inside, as timm's, that stays.

    ``w' = w s``, ``b' = (b - mean) s + shift`` with ``s = scale / sqrt(variance + eps)``, in float64.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()
    >>> before = model(torch.ones(1, 2))
    >>> fold(model, "0", "1")
    >>> model[1], torch.allclose(model(torch.ones(1, 2)), before)
    (Identity(), True)
    """
    one, other = cast(Any, model.get_submodule(layer)), cast(Any, model.get_submodule(norm))
    own = (one.weight, one.bias, other.running_mean, other.running_var)
    wide = [None if p is None else p.double() for p in (*own, other.weight, other.bias)]
    weight, bias, mean, variance, scale, shift = cast(list[Any], wide)
    if isinstance(one, nn.Linear):
        fused = fuse_linear_bn_weights(weight, bias, mean, variance, other.eps, scale, shift)
    else:
        transposed = type(one) in _TRANSPOSED
        fused = fuse_conv_bn_weights(weight, bias, mean, variance, other.eps, scale, shift, transposed)
    rest = _rest(other)
    if rest is None:
        raise ValueError(f"{norm!r} is no batch-norm that can be part of {layer!r}")
    learns = one.weight.requires_grad
    one.weight, one.bias = (nn.Parameter(p.to(one.weight), learns) for p in fused)
    model.set_submodule(norm, rest.train(other.training))
