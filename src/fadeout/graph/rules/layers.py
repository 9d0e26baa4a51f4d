"""Rules for layers with weights: linear layers, convolutions, embeddings."""

import copy
import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn.modules.conv import _ConvNd

from fadeout.graph.analysis import Analysis
from fadeout.graph.editor import Editor
from fadeout.graph.rules.base import Link, Of, Rule, Term, equal
from fadeout.graph.rules.calls import source
from fadeout.graph.rules.registry import handles, versions


class Weighted(Rule, ABC):
    """Convolutions and linear layers: every output is a weighted sum of the inputs, and a bias.

    An input that is constantly zero is not needed; nor is another constant, where it can be folded into the
    bias exactly.
    """

    any_order = weighs = mixes = True
    per_input = False
    """Whether a weight meets every position of the input once, not of the output."""
    exact = True
    """Whether the module does what its class in torch does, and nothing besides, such as padding."""

    def derived(self, module: Any, kind: type, args: tuple, kwargs: dict) -> Rule | None:
        """Such as pad for themselves, as long as a zero in the weights means what it means to the parent."""
        found = super().derived(module, kind, args, kwargs)
        if found is not None or self.dim(module) != 0:
            return found
        twin, x = copy.deepcopy(module), args[0].clone()
        whole = twin(*args, **kwargs)
        x.select(self.axis(module, x.shape), 0).zero_()  # an input that is zero, or that no weight reads
        silent = twin(x, *args[1:], **kwargs)
        twin.weight.data[: len(twin.weight) // self.groups(module), 0] = 0
        if not equal(twin(*args, **kwargs), silent):
            return None
        twin = copy.deepcopy(module)
        for name in self.filters(module):  # an output without weights
            getattr(twin, name).data[0] = 0
        axis = self.axis(module, whole.shape)
        expected = whole.index_fill(axis, torch.tensor([0], device=whole.device), 0.0)
        if not equal(twin(*args, **kwargs), expected):
            return None
        rule = copy.copy(self)
        rule.exact = False
        return rule

    def constants(self, node: fx.Node, a: Analysis) -> None:
        values, foldable = self._inputs(node, a)
        lives = self._reach(node, a, ~foldable, forwards=True)
        constant = torch.zeros(len(lives), dtype=torch.float64)
        if not bool(lives.all()):
            constant = self._fold(node, a, torch.where(foldable, values, 0.0))
        if a.dead is not None and str(node.target) in a.dead:
            gone = a.dead[str(node.target)]
            lives, constant = lives & ~gone, constant.masked_fill(gone, 0.0)
        a.follow(node, self.axis(a.module(node), a.shape(node)), torch.where(lives, math.nan, constant))

    def needs(self, node: fx.Node, a: Analysis) -> None:
        before, flow = source(node), a.flows.get(node)
        a.tie_sites(node)
        for site in a.network.sites(node):
            a.tie(source(site), before)
        if flow is None:
            a.need_all(before)
        elif before in a.flows:
            _, foldable = self._inputs(node, a)
            a.grow(before, self._reach(node, a, flow.needed, forwards=False) & ~foldable)
            self._equalize(node, a)
        elif self.groups(a.module(node)) > 1:
            a.need_all(node)  # the inputs all stay, and each group must keep as many outputs as the others

    def cut(self, node: fx.Node, e: Editor) -> None:
        module = e.module(node)
        groups, shape = self.groups(module), self.parts(module).shape
        per_output, per_input = shape[0] // groups, shape[1]
        outputs, inputs = e.kept(node), e.kept(source(node))
        if outputs is None and inputs is None:
            return
        if inputs is not None:
            self._fold_into_bias(node, e, inputs)
        outputs = torch.arange(shape[0]) if outputs is None else outputs
        inputs = torch.arange(per_input * groups) if inputs is None else inputs
        left = (outputs // per_output).unique()  # the groups that stay
        # For every output the inputs of its group, counted inside the group; for every input the outputs.
        ins = torch.stack([inputs[inputs // per_input == group] % per_input for group in left])
        outs = torch.stack([outputs[outputs // per_output == group] % per_output for group in left])
        by_output = outputs[:, None], ins[torch.searchsorted(left, outputs // per_output)]
        by_input = inputs[:, None], outs[torch.searchsorted(left, inputs // per_input)]
        e.slice(node, "weight", by_output if self.dim(module) == 0 else by_input)
        e.slice(node, "bias", (outputs,))
        self.resize(module, len(inputs), len(outputs), len(left))

    def links(self, node: fx.Node, a: Analysis) -> list[Link]:
        """Only channels that are filtered each for itself belong to those that come out."""
        module = a.module(node)
        outputs, inputs, _ = self.parts(module).shape
        numbers = np.arange(outputs)
        return [(source(node), numbers // (outputs // self.groups(module)), numbers)] if inputs == 1 else []

    def filters(self, module: Any) -> tuple[str, ...]:
        return ("weight",) if module.bias is None else ("weight", "bias")

    def zeros(self, module: Any) -> Tensor | None:
        return ~self.parts(module).flatten(1).any(1).cpu()

    def per_channel(self, module: Any) -> int:
        return int(module.bias is not None)

    def gains_bias(self, module: Any) -> bool:
        return module.bias is None

    def terms(self, node: fx.Node, a: Analysis, of: Of) -> list[Term]:
        module, grouped = a.module(node), self.is_grouped(a.module(node))
        _, inputs, size = self.parts(module).shape
        both = source(node) in a.flows and (grouped or self.groups(module) == 1)
        each = size if both else inputs * size
        if of == "operations":
            shape = a.shape(source(node) if self.per_input else node)  # a weight is used so often
            each *= shape.numel() // shape[self.axis(module, shape)]
        nodes = (node, source(node)) if both else (node,)
        groups = self.groups(module) if both and grouped else 1
        return [Term(each, nodes, groups), *super().terms(node, a, of)]

    # What the kinds of layers differ in

    @abstractmethod
    def axis(self, module: Any, shape: torch.Size) -> int:
        """Where the channels lie, in the input as in the output."""

    @abstractmethod
    def resize(self, module: Any, inputs: int, outputs: int, groups: int) -> None:
        """Set the sizes that the module knows of itself."""

    def groups(self, module: Any) -> int:
        return 1

    def parts(self, module: Any) -> Tensor:
        """The weights as (outputs, inputs of a group, kernel)."""
        weight = module.weight.detach()
        return weight.flatten(2) if weight.dim() > 2 else weight[..., None]

    # What they share

    def _inputs(self, node: fx.Node, a: Analysis) -> tuple[Tensor, Tensor]:
        """The constants of the inputs, and which of them the layer can do without."""
        module, before = a.module(node), source(node)
        flow = a.flows.get(before)
        if flow is None or flow.axis != self.axis(module, a.shape(before)):
            a.flows.pop(before, None)
            width = self.parts(module).shape[1] * self.groups(module)
            return torch.full((width,), math.nan).double(), torch.zeros(width, dtype=torch.bool)
        if len(a.network.sites(node)) > 1 or not self.exact or not self.folds(module):
            return flow.constant, flow.constant == 0
        return flow.constant, ~flow.constant.isnan()

    def _reach(self, node: fx.Node, a: Analysis, marked: Tensor, *, forwards: bool) -> Tensor:
        """Which outputs the marked inputs reach; backwards, which inputs the marked outputs."""
        module = a.module(node)
        groups = self.groups(module)
        if a.dead is not None:  # all weights count, but for dead outputs: a group is reached as a whole
            shape = self.parts(module).shape
            if not forwards and str(node.target) in a.dead:
                marked = marked & ~a.dead[str(node.target)]
            width = shape[0] // groups if forwards else shape[1]
            return marked.view(groups, -1).any(1).repeat_interleave(width)
        alive = a.once((node, "alive"), lambda: (self.parts(module) != 0).any(-1).cpu())
        alive = alive.view(groups, -1, alive.shape[1])
        if forwards:
            return (alive & marked.view(groups, 1, -1)).any(2).view(-1)
        return (alive & marked.view(groups, -1, 1)).any(1).view(-1)

    def _fold(self, node: fx.Node, a: Analysis, values: Tensor) -> Tensor:
        """What the layer gives for constant inputs."""
        module = a.module(node)
        groups, weight = self.groups(module), self.parts(module)
        summed = a.once((node, "summed"), lambda: weight.double().sum(-1).cpu())
        out = (summed.view(groups, -1, summed.shape[1]) @ values.view(groups, -1, 1)).view(-1)
        return out if module.bias is None else out + module.bias.detach().double().cpu()

    def _fold_into_bias(self, node: fx.Node, e: Editor, inputs: Tensor) -> None:
        values = e.analysis.flows[source(node)].constant.nan_to_num(0.0)
        values[inputs] = 0
        if bool(values.any()) and len(e.analysis.network.sites(node)) == 1:
            e.set_bias(node, self._fold(node, e.analysis, values))

    def _equalize(self, node: fx.Node, a: Analysis) -> None:
        """All groups that stay keep as many inputs and as many outputs as the others."""
        groups = self.groups(a.module(node))
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


@handles(nn.Linear)
class Linear(Weighted):
    def axis(self, module: Any, shape: torch.Size) -> int:
        return len(shape) - 1

    def resize(self, module: Any, inputs: int, outputs: int, groups: int) -> None:
        for names in _SIZES:
            for name, size in zip(names, (inputs, outputs), strict=True):
                if hasattr(module, name):
                    setattr(module, name, size)

    def operations(self, module: Any, given: Any, output: Any) -> tuple[int, int]:
        count = output.numel() * (self.parts(module).shape[1] + 1)
        return count, count

    def is_alike(self, module: Any, args: tuple, kwargs: dict) -> bool:
        """Linear layers of others, such as PyTorch Geometric has."""
        own = {name: p for name, p in module.named_parameters() if p is not None}
        if len(args) != 1 or kwargs or not {"weight"} <= own.keys() <= {"weight", "bias"}:
            return False
        bias = getattr(module, "bias", None)
        return own["weight"].dim() == 2 and equal(
            module(*args), nn.functional.linear(args[0], self.parts(module)[..., 0], bias)
        )


@handles()
class TransposedLinear(Linear):
    """A linear layer that stores its weights as (inputs, outputs), as ``Conv1D`` of transformers does."""

    def dim(self, module: Any) -> int:
        return 1

    def parts(self, module: Any) -> Tensor:
        return module.weight.detach().T[..., None]


_SIZES = (("in_features", "out_features"), ("in_channels", "out_channels"), ("nx", "nf"))


@handles(*versions("Conv"), _ConvNd)
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

    def is_grouped(self, module: Any) -> bool:
        return module.groups not in (1, module.in_channels)

    def is_depthwise(self, module: Any) -> bool:
        return module.groups == module.in_channels > 1

    def resize(self, module: Any, inputs: int, outputs: int, groups: int) -> None:
        module.in_channels, module.out_channels, module.groups = inputs, outputs, groups

    def operations(self, module: Any, given: Any, output: Any) -> tuple[int, int]:
        weights = module.weight.numel()  # f_in / groups * f_out * k^2
        by_input, by_output = given.numel() // module.in_channels, output.numel() // module.out_channels
        return weights * by_input, weights * by_output


@handles(*versions("ConvTranspose"))
class TransposedConvolution(Convolution):
    """Stored as (inputs, outputs of a group, kernel); constants other than zero make patterns."""

    def folds(self, module: Any) -> bool:
        return False

    per_input = True

    def dim(self, module: Any) -> int:
        return 1

    def filters(self, module: Any) -> tuple[str, ...]:
        return super().filters(module) if module.groups == 1 else ()

    def parts(self, module: Any) -> Tensor:
        weight, groups = module.weight.detach().flatten(2), module.groups
        grouped = weight.view(groups, -1, *weight.shape[1:])
        return grouped.transpose(1, 2).reshape(-1, weight.shape[0] // groups, weight.shape[2])


@handles(nn.Embedding)
class Embedding(Rule):
    """A table: columns that are zero throughout are constant."""

    def constants(self, node: fx.Node, a: Analysis) -> None:
        table = a.module(node).weight
        everything = torch.ones(table.shape[1], dtype=torch.bool)
        used = table.detach().cpu().any(0) if a.dead is None else everything
        a.follow(node, len(a.shape(node)) - 1, torch.where(used, math.nan, 0.0))

    def needs(self, node: fx.Node, a: Analysis) -> None:
        a.tie_sites(node)

    def cut(self, node: fx.Node, e: Editor) -> None:
        kept = e.kept(node)
        if kept is not None:
            e.slice(node, "weight", (slice(None), kept))
            e.module(node).embedding_dim = len(kept)

    def per_channel(self, module: Any) -> int:
        return module.num_embeddings
