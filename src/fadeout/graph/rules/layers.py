"""Rules for layers with weights: linear layers, convolutions, embeddings, norms."""

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, fx

from fadeout.graph.rules.base import Link, Linked, Rule, source

if TYPE_CHECKING:
    from fadeout.compaction.cut import Surgery
    from fadeout.graph.analysis import Analysis, Flow


class Weighted(Rule, ABC):
    """Convolutions and linear layers: every output is a weighted sum of the inputs, and a bias.

    An input that is constantly zero is not needed; nor is another constant, where it can be folded into the
    bias exactly.
    """

    def constants(self, node: fx.Node, a: "Analysis") -> None:
        values, foldable = self._inputs(node, a)
        lives = self._reach(node, a, ~foldable, forwards=True)
        constant = torch.zeros(len(lives), dtype=torch.float64)
        if not bool(lives.all()):
            constant = self._fold(node, a, torch.where(foldable, values, 0.0))
        if a.dead is not None and str(node.target) in a.dead:
            gone = a.dead[str(node.target)]
            lives, constant = lives & ~gone, constant.masked_fill(gone, 0.0)
        axis = self.axis(a.network.module(node), a.shape(node))
        a.follow(node, axis, torch.where(lives, math.nan, constant))

    def needs(self, node: fx.Node, a: "Analysis") -> None:
        before = source(node)
        for site in a.network.sites(node):  # a module that is used twice has one set of channels
            a.tie(site, node)
            a.tie(source(site), before)
        flow = a.flows.get(node)
        if flow is None:
            a.need_all(before)
        elif before in a.flows:
            _, foldable = self._inputs(node, a)
            a.grow(before, self._reach(node, a, flow.needed, forwards=False) & ~foldable)
            self._equalize(node, a)
        elif self.groups(a.network.module(node)) > 1:
            a.need_all(node)  # the inputs all stay, and each group must keep as many outputs as the others

    def cut(self, node: fx.Node, s: "Surgery") -> None:
        module = s.module(node)
        groups, shape = self.groups(module), self.parts(module).shape
        per_output, per_input = shape[0] // groups, shape[1]
        outputs, inputs = s.kept(node), s.kept(source(node))
        if outputs is None and inputs is None:
            return
        if inputs is not None:
            self._fold_into_bias(node, s, inputs)
        outputs = torch.arange(shape[0]) if outputs is None else outputs
        inputs = torch.arange(per_input * groups) if inputs is None else inputs
        left = (outputs // per_output).unique()  # the groups that stay
        # For every output the inputs of its group, counted inside the group; for every input the outputs.
        ins = torch.stack([inputs[inputs // per_input == group] % per_input for group in left])
        outs = torch.stack([outputs[outputs // per_output == group] % per_output for group in left])
        self.slice_weight(
            node,
            s,
            (outputs[:, None], ins[torch.searchsorted(left, outputs // per_output)]),
            (inputs[:, None], outs[torch.searchsorted(left, inputs // per_input)]),
        )
        s.slice(node, "bias", (outputs,))
        self.resize(module, len(inputs), len(outputs), len(left))

    def links(self, node: fx.Node, a: "Analysis") -> list[Link]:
        """Only channels that are filtered each for itself belong to those that come out."""
        shape = self.parts(a.network.module(node)).shape
        groups = self.groups(a.network.module(node))
        numbers = np.arange(shape[0])
        return [(source(node), numbers // (shape[0] // groups), numbers)] if shape[1] == 1 else []

    # What the kinds of layers differ in

    @abstractmethod
    def axis(self, module: Any, shape: torch.Size) -> int:
        """Where the channels lie, in the input as in the output."""

    @abstractmethod
    def folds(self, module: Any) -> bool:
        """Whether a constant other than zero can be folded into the bias exactly."""

    @abstractmethod
    def resize(self, module: Any, inputs: int, outputs: int, groups: int) -> None:
        """Set the sizes that the module knows of itself."""

    def groups(self, module: Any) -> int:
        return 1

    def parts(self, module: Any) -> Tensor:
        """The weights as (outputs, inputs of a group, kernel)."""
        return (
            module.weight.detach().flatten(2)
            if module.weight.dim() > 2
            else module.weight.detach()[..., None]
        )

    def slice_weight(self, node: fx.Node, s: "Surgery", by_output: tuple, by_input: tuple) -> None:
        s.slice(node, "weight", by_output)

    # What they share

    def _inputs(self, node: fx.Node, a: "Analysis") -> tuple[Tensor, Tensor]:
        """The constants of the inputs, and which of them the layer can do without."""
        module, before = a.network.module(node), source(node)
        flow = a.flows.get(before)
        if flow is None or flow.axis != self.axis(module, a.shape(before)):
            a.flows.pop(before, None)
            width = self.parts(module).shape[1] * self.groups(module)
            return torch.full((width,), math.nan).double(), torch.zeros(width, dtype=torch.bool)
        if len(a.network.sites(node)) > 1 or not self.folds(module):
            return flow.constant, flow.constant == 0
        return flow.constant, ~flow.constant.isnan()

    def _reach(self, node: fx.Node, a: "Analysis", marked: Tensor, *, forwards: bool) -> Tensor:
        """Which outputs the marked inputs reach; backwards, which inputs the marked outputs."""
        module = a.network.module(node)
        groups = self.groups(module)
        if a.dead is not None:  # all weights count: a group is reached as a whole
            shape = self.parts(module).shape
            width = shape[0] // groups if forwards else shape[1]
            return marked.view(groups, -1).any(1).repeat_interleave(width)
        alive = a.once((node, "alive"), lambda: (self.parts(module) != 0).any(-1).cpu())
        alive = alive.view(groups, -1, alive.shape[1])
        if forwards:
            return (alive & marked.view(groups, 1, -1)).any(2).view(-1)
        return (alive & marked.view(groups, -1, 1)).any(1).view(-1)

    def _fold(self, node: fx.Node, a: "Analysis", values: Tensor) -> Tensor:
        """What the layer gives for constant inputs."""
        module: Any = a.network.module(node)
        groups, weight = self.groups(module), self.parts(module)
        summed = a.once((node, "summed"), lambda: weight.double().sum(-1).cpu())
        out = (summed.view(groups, -1, summed.shape[1]) @ values.view(groups, -1, 1)).view(-1)
        return out if module.bias is None else out + module.bias.detach().double().cpu()

    def _fold_into_bias(self, node: fx.Node, s: "Surgery", inputs: Tensor) -> None:
        flow = s.analysis.flows[source(node)]
        values = flow.constant.nan_to_num(0.0)
        values[inputs] = 0
        if bool(values.any()) and len(s.analysis.network.sites(node)) == 1:
            s.set_bias(node, self._fold(node, s.analysis, values))

    def _equalize(self, node: fx.Node, a: "Analysis") -> None:
        """All groups that stay keep as many inputs and as many outputs as the others."""
        groups = self.groups(a.network.module(node))
        if groups == 1:
            return
        before, after = a.flows[source(node)].needed.view(groups, -1), a.flows[node].needed.view(groups, -1)
        left = before.any(1) | after.any(1)
        for one, needed in ((source(node), before), (node, after)):
            most = max(int(needed.sum(1).max()), 1)
            # of each group the needed ones first, then the first of the others
            order = needed.int().argsort(dim=1, descending=True, stable=True)
            filled = torch.zeros_like(needed).scatter_(1, order[:, :most], True)
            a.grow(one, (filled & left[:, None]).view(-1))


class Linear(Weighted):
    def axis(self, module: Any, shape: torch.Size) -> int:
        return len(shape) - 1

    def folds(self, module: Any) -> bool:
        return True

    def resize(self, module: Any, inputs: int, outputs: int, groups: int) -> None:
        module.in_features, module.out_features = inputs, outputs


class Convolution(Weighted):
    """With zero padding, a constant other than zero looks different at the border: it is not folded."""

    def axis(self, module: Any, shape: torch.Size) -> int:
        return len(shape) - len(module.kernel_size) - 1

    def folds(self, module: Any) -> bool:
        if module.padding_mode != "zeros" or module.padding == "valid":
            return True
        return module.padding != "same" and not any(module.padding)

    def groups(self, module: Any) -> int:
        return module.groups

    def resize(self, module: Any, inputs: int, outputs: int, groups: int) -> None:
        module.in_channels, module.out_channels, module.groups = inputs, outputs, groups


class TransposedConvolution(Convolution):
    """Stored as (inputs, outputs of a group, kernel); constants other than zero make patterns."""

    def folds(self, module: Any) -> bool:
        return False

    def parts(self, module: Any) -> Tensor:
        weight, groups = module.weight.detach().flatten(2), module.groups
        grouped = weight.view(groups, -1, *weight.shape[1:])
        return grouped.transpose(1, 2).reshape(-1, weight.shape[0] // groups, weight.shape[2])

    def slice_weight(self, node: fx.Node, s: "Surgery", by_output: tuple, by_input: tuple) -> None:
        s.slice(node, "weight", by_input)


class Embedding(Rule):
    """A table: columns that are zero throughout are constant."""

    def constants(self, node: fx.Node, a: "Analysis") -> None:
        table: Any = a.network.module(node).weight
        used = (
            torch.ones(table.shape[1], dtype=torch.bool)
            if a.dead is not None
            else table.detach().cpu().any(0)
        )
        a.follow(node, len(a.shape(node)) - 1, torch.where(used, math.nan, 0.0))

    def needs(self, node: fx.Node, a: "Analysis") -> None:
        for site in a.network.sites(node):
            a.tie(site, node)

    def cut(self, node: fx.Node, s: "Surgery") -> None:
        kept = s.kept(node)
        if kept is not None:
            s.slice(node, "weight", (slice(None), kept))
            s.module(node).embedding_dim = len(kept)


class BatchNorm(Linked):
    """Each channel for itself: with scale zero it is its shift."""

    keeps_alike = False  # others may need more of the input

    def axis(self, node: fx.Node, flow: "Flow", a: "Analysis") -> int | None:
        return 1 if flow.axis == 1 else None

    def values(self, node: fx.Node, flow: "Flow", a: "Analysis") -> Tensor:
        module: Any = a.network.module(node)
        constant = torch.full_like(flow.constant, math.nan)
        if a.dead is not None:
            gone = a.dead.get(str(node.target))
            return constant if gone is None else constant.masked_fill(gone, 0.0)
        weight, bias = (
            None if p is None else p.detach().double().cpu() for p in (module.weight, module.bias)
        )
        if a.for_inference and getattr(module, "running_var", None) is not None:
            mean, variance = module.running_mean.double().cpu(), module.running_var.double().cpu()
            constant = (flow.constant - mean) * (variance + module.eps).rsqrt()
            constant = constant if weight is None else constant * weight + bias
        if weight is not None:
            constant = torch.where(weight == 0, torch.zeros_like(weight) if bias is None else bias, constant)
        return constant

    def needs(self, node: fx.Node, a: "Analysis") -> None:
        if node not in a.flows:
            return super().needs(node, a)
        for site in a.network.sites(node):
            a.tie(site, node)
        if a.couple or source(node) not in a.flows:
            a.tie(source(node), node)
        else:
            a.grow(source(node), a.flows[node].needed)
        return None

    def cut(self, node: fx.Node, s: "Surgery") -> None:
        if node in s.analysis.flows:  # others may need more of the same input
            for site in s.analysis.network.sites(node):
                s.place(source(site), site)
        kept = s.kept(node)
        if kept is not None:
            for name in ("weight", "bias", "running_mean", "running_var"):
                s.slice(node, name, (kept,))
            self.resize(s.module(node), len(kept))

    def resize(self, module: Any, channels: int) -> None:
        module.num_features = channels


class GroupNorm(BatchNorm):
    """Only whole groups go: every channel is scaled by all the others of its group."""

    def needs(self, node: fx.Node, a: "Analysis") -> None:
        super().needs(node, a)
        if node in a.flows:
            needed = a.flows[node].needed.view(a.network.module(node).num_groups, -1)  # pyright: ignore
            a.grow(node, needed.any(1).repeat_interleave(needed.shape[1]))

    def resize(self, module: Any, channels: int) -> None:
        size = module.num_channels // module.num_groups
        module.num_channels, module.num_groups = channels, channels // size


class LayerNorm(Linked):
    """Every channel is scaled by all the others: none goes, but those with scale zero are constant."""

    def axis(self, node: fx.Node, flow: "Flow", a: "Analysis") -> int | None:
        module: Any = a.network.module(node)
        return (
            flow.axis if flow.axis == len(a.shape(node)) - 1 and len(module.normalized_shape) == 1 else None
        )

    def values(self, node: fx.Node, flow: "Flow", a: "Analysis") -> Tensor:
        module: Any = a.network.module(node)
        constant = torch.full_like(flow.constant, math.nan)
        if module.weight is None or a.dead is not None:
            return constant
        bias = getattr(module, "bias", None)  # RMSNorm has none
        shift = torch.zeros(flow.width) if bias is None else bias.detach().cpu()
        return torch.where(module.weight.detach().cpu() == 0, shift.double(), constant)

    def needs(self, node: fx.Node, a: "Analysis") -> None:
        a.need_all(source(node))
        a.need_all(node)
