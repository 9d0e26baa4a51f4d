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
        module, gone = a.module(node), None if a.dead is None else a.dead.get(str(node.target))
        if gone is not None:
            silent = a.network.once((id(module), "silent"), lambda: self._silent(node, a))
            return torch.where(gone, silent, math.nan)
        known = torch.zeros(flow.width, dtype=torch.bool)
        if a.dead is None and module.weight is not None:
            known = module.weight.detach().cpu() == 0
        if a.dead is None and a.for_inference and getattr(module, "running_var", None) is not None:
            known = known | ~flow.constant.isnan()
        if not bool(known.any()):
            return torch.full_like(flow.constant, math.nan)
        return torch.where(known, _of_constants(wide_copy(module), flow.constant, node, a), math.nan)

    def derived(self, module: Any, kind: type, args: tuple, kwargs: dict) -> Rule | None:
        """Such as have an activation inside: as long as each channel is treated for itself."""
        x = args[0]
        changed = x.clone()
        changed[:, 0] = changed[:, 0] + 1
        mine, other = module(*args, **kwargs), module(changed, *args[1:], **kwargs)
        alone = mine.shape == x.shape and (x.shape[1] == 1 or equal(mine[:, 1:], other[:, 1:]))
        return self if alone else super().derived(module, kind, args, kwargs)

    def _silent(self, node: fx.Node, a: Analysis) -> Tensor:
        """What comes out of it where scale and shift are zero."""
        module = a.module(node)
        if any(tensor.is_meta for tensor in module.state_dict().values()):
            module = copy.deepcopy(module).to_empty(device="cpu")
        module = wide_copy(module)
        for name, tensor in module.state_dict().items():
            tensor.fill_(name == "running_var")
        return _of_constants(module, torch.zeros(a.shape(node)[1]), node, a)

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


@torch.no_grad()
def _of_constants(module: nn.Module, constants: Tensor, node: fx.Node, a: Analysis) -> Tensor:
    """What a norm, perhaps with an activation inside, gives for constants; zeros stand in for others."""
    behind = len(a.shape(node)) - 2
    x = constants.nan_to_num(0.0).double().view(1, -1, *[1] * behind)
    x = x.expand(2, -1, *[2] * behind)  # of a single value there are no statistics
    return module.forward(x).transpose(0, 1).flatten(1)[:, 0]


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
