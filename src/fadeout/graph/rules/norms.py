"""Rules for normalisations."""

import copy
import math
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _NormBase

from fadeout.graph.analysis import Analysis, Flow
from fadeout.graph.editor import Editor
from fadeout.graph.rules.base import Linked, Rule, equal
from fadeout.graph.rules.calls import source, wide_copy
from fadeout.graph.rules.registry import handles, versions


@handles(_NormBase)  # instance-norms, by what they are derived from
class Norm(Rule):
    """Any normalisation: two operations for each value."""

    mixes = True

    def operations(self, module: Any, given: Any, output: Any) -> tuple[int, int]:
        return 2 * output.numel(), 2 * output.numel()


@handles(*versions("BatchNorm"), nn.SyncBatchNorm)
class BatchNorm(Norm, Linked):
    """Each channel for itself: with scale zero it is its shift."""

    normalizes = any_order = True
    keeps_alike = False  # others may need more of the input

    def axis(self, node: fx.Node, flow: Flow, a: Analysis) -> int | None:
        return 1 if flow.axis == 1 else None

    def values(self, node: fx.Node, flow: Flow, a: Analysis) -> Tensor:
        module = a.module(node)
        constant = torch.full_like(flow.constant, math.nan)
        if id(module) in a.network.derived:
            return self._values_of(node, flow, a)
        if a.dead is not None:
            gone = a.dead.get(str(node.target))
            return constant if gone is None else constant.masked_fill(gone, 0.0)
        own = (module.weight, module.bias)
        weight, bias = (None if p is None else p.detach().double().cpu() for p in own)
        if a.for_inference and getattr(module, "running_var", None) is not None:
            mean, variance = module.running_mean.double().cpu(), module.running_var.double().cpu()
            constant = (flow.constant - mean) * (variance + module.eps).rsqrt()
            constant = constant if weight is None else constant * weight + bias
        if weight is not None:
            constant = torch.where(weight == 0, torch.zeros_like(weight) if bias is None else bias, constant)
        return constant

    def derived(self, module: Any, kind: type, args: tuple, kwargs: dict) -> Rule | None:
        """Such as have an activation inside: as long as each channel is treated for itself."""
        x = args[0]
        changed = x.clone()
        changed[:, 0] = changed[:, 0] + 1
        mine, other = module(*args, **kwargs), module(changed, *args[1:], **kwargs)
        alone = mine.shape == x.shape and (x.shape[1] == 1 or equal(mine[:, 1:], other[:, 1:]))
        return self if alone else super().derived(module, kind, args, kwargs)

    def _values_of(self, node: fx.Node, flow: Flow, a: Analysis) -> Tensor:
        """The constants that come out of a norm with an activation inside: it runs on them itself."""
        known = torch.zeros(flow.width, dtype=torch.bool)
        if a.dead is not None:
            known = a.dead.get(str(node.target), known)
            silent = a.network.once((id(a.module(node)), "silent"), lambda: self._silent(node, a))
            return torch.where(known, silent, math.nan)
        module = wide_copy(a.module(node))
        if module.weight is not None:
            known = module.weight.detach() == 0
        if a.for_inference and getattr(module, "running_var", None) is not None:
            known = known | ~flow.constant.isnan()
        if not bool(known.any()):
            return torch.full_like(flow.constant, math.nan)
        with torch.no_grad():
            shape = [-1 if d == 1 else 1 for d in range(len(a.shape(node)))]
            out = module(flow.constant.nan_to_num(0.0).view(shape))
        return torch.where(known, out.view(-1), math.nan)

    def _silent(self, node: fx.Node, a: Analysis) -> Tensor:
        """What comes out of it where scale and shift are zero."""
        module = a.module(node)
        if any(tensor.is_meta for tensor in module.state_dict().values()):
            module = copy.deepcopy(module).to_empty(device="cpu")
        module = wide_copy(module)
        for name, tensor in module.state_dict().items():
            tensor.fill_(name == "running_var")
        with torch.no_grad():
            return module(
                torch.zeros([1, *a.shape(node)[1:2], *[1] * (len(a.shape(node)) - 2)]).double()
            ).view(-1)

    def needs(self, node: fx.Node, a: Analysis) -> None:
        if node not in a.flows:
            return super().needs(node, a)
        a.tie_sites(node)
        if a.couple or source(node) not in a.flows:
            a.tie(source(node), node)
        else:
            a.grow(source(node), a.flows[node].needed)

    def cut(self, node: fx.Node, e: Editor) -> None:
        if node in e.analysis.flows:  # others may need more of the same input
            for site in e.analysis.network.sites(node):
                e.gather(source(site), site)
        kept = e.kept(node)
        if kept is not None:
            for name in ("weight", "bias", "running_mean", "running_var"):
                e.slice(node, name, (kept,))
            self.resize(e.module(node), len(kept))

    def scales(self, module: Any) -> tuple[str, ...]:
        return () if module.weight is None else ("weight", "bias")

    def per_channel(self, module: Any) -> int:
        return sum(parameter is not None for parameter in (module.weight, module.bias))

    def resize(self, module: Any, channels: int) -> None:
        """Set the sizes that the module knows of itself."""
        module.num_features = channels


@handles(*versions("InstanceNorm"))
class InstanceNorm(BatchNorm):
    """Each channel of each sample for itself: a constant becomes the shift, whatever the mode."""

    def axis(self, node: fx.Node, flow: Flow, a: Analysis) -> int | None:
        batched = len(a.shape(node)) == len(a.shape(source(node))) > 2
        return 1 if flow.axis == 1 and batched and a.shape(node)[1] == flow.width else None

    def values(self, node: fx.Node, flow: Flow, a: Analysis) -> Tensor:
        module = a.module(node)
        constant = super().values(node, flow, a)
        if module.track_running_stats or (a.dead is not None and module.bias is not None):
            return constant
        shift = (
            torch.zeros(flow.width).double() if module.bias is None else module.bias.detach().cpu().double()
        )
        return torch.where(flow.constant.isnan(), constant, shift)


@handles(nn.GroupNorm)
class GroupNorm(BatchNorm):
    """Only whole groups go: every channel is scaled by all the others of its group."""

    any_order = False

    def needs(self, node: fx.Node, a: Analysis) -> None:
        super().needs(node, a)
        if node in a.flows:
            needed = a.flows[node].needed.view(a.module(node).num_groups, -1)
            a.grow(node, needed.any(1).repeat_interleave(needed.shape[1]))

    def scales(self, module: Any) -> tuple[str, ...]:
        return ()

    def resize(self, module: Any, channels: int) -> None:
        size = module.num_channels // module.num_groups
        module.num_channels, module.num_groups = channels, channels // size


@handles(nn.LayerNorm, nn.RMSNorm)
class LayerNorm(Norm, Linked):
    """Every channel is scaled by all the others: none goes, but those with scale zero are constant."""

    def axis(self, node: fx.Node, flow: Flow, a: Analysis) -> int | None:
        last = flow.axis == len(a.shape(node)) - 1
        return flow.axis if last and len(a.module(node).normalized_shape) == 1 else None

    def values(self, node: fx.Node, flow: Flow, a: Analysis) -> Tensor:
        module = a.module(node)
        constant = torch.full_like(flow.constant, math.nan)
        if module.weight is None or a.dead is not None:
            return constant
        bias = getattr(module, "bias", None)  # RMSNorm has none
        shift = torch.zeros(flow.width) if bias is None else bias.detach().cpu()
        return torch.where(module.weight.detach().cpu() == 0, shift.double(), constant)

    def needs(self, node: fx.Node, a: Analysis) -> None:
        a.need_all(source(node))
        a.need_all(node)
