"""Dead channels become a smaller module."""

import copy
import warnings
from collections.abc import Iterable
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from fadeout._arguments import Example, Leaves, checked, shown
from fadeout.compaction.cut import cut
from fadeout.compaction.optimizer_state import cut_optimizer
from fadeout.compaction.plan import Plan, plans_of, set_plans
from fadeout.graph.analysis import analyse
from fadeout.graph.trace import trace
from fadeout.torch_bridge.modes import in_mode
from fadeout.torch_bridge.parameters import unwrap


@overload
def compact(
    model: nn.Module,
    example_input: Any,
    *,
    couple: bool = False,
    for_inference: bool = False,
    leaves: Iterable[Any] = (),
) -> nn.Module: ...


@overload
def compact(
    model: nn.Module,
    example_input: Any,
    *,
    optimizer: Optimizer,
    couple: bool = False,
    for_inference: bool = False,
    leaves: Iterable[Any] = (),
) -> tuple[nn.Module, Optimizer]: ...


@checked
def compact(
    model: nn.Module,
    example_input: Example,
    *,
    optimizer: Optimizer | None = None,
    couple: bool = False,
    for_inference: bool = False,
    leaves: Leaves = (),
) -> nn.Module | tuple[nn.Module, Optimizer]:
    """A smaller module with the same outputs: channels that are dead, whoever zeroed them, are gone.

    A channel can go if nobody needs it: because it is constant, and the constant is folded into the bias of
    the layers that read it, or because all weights that read it are zero. Outputs are the same in evaluation
    mode, up to rounding, and in training mode too where the removed channels are exactly zero. The model
    itself is untouched. The copy keeps the user's class and ``forward`` where it can; where a line of
    ``forward`` must change (the sides of an addition keep different channels, or a number of channels is
    written in it), it is a ``torch.fx.GraphModule`` with the same parameter names.

    Args:
        model: the network.
        example_input: a tensor, or a tuple of tensors, that ``model(*example_input)`` takes.
        optimizer: also carry over its state (momentum, Adam's moments) and return (module, optimizer).
        couple: both sides of an addition keep the same channels, so that no channels are gathered by index.
        for_inference: also fold constants that come out of batch-norm's running statistics, which holds
            only in evaluation mode.
        leaves: modules, or classes of modules, that cannot be traced; they keep all their channels.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> with torch.no_grad():
    ...     model[0].weight[:6] = 0
    ...     model[0].bias[:6] = 0
    >>> compact(model, torch.zeros(1, 4))
    Sequential(
      (0): Linear(in_features=4, out_features=2, bias=True)
      (1): ReLU()
      (2): Linear(in_features=2, out_features=2, bias=True)
    )
    """
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise ValueError(f"optimizer is a torch.optim.Optimizer or None, got {shown(optimizer)}")
    model = unwrap(model)
    network = trace(model, example_input, leaves)
    options: dict[str, Any] = {"couple": couple, "for_inference": for_inference}
    two_ways = network.follows_training is None

    def fits(small: nn.Module) -> bool:
        if not _agree(model, small, network.inputs):
            return False
        if not two_ways or for_inference:
            return True
        # The graph is that of evaluation mode; in training mode running statistics move, so on copies.
        return _agree(copy.deepcopy(model), copy.deepcopy(small), network.inputs, training=True)

    found = cut(analyse(network, **options))
    if (found.rewritten and two_ways) or not fits(found.model):
        # The user's forward does more than the graph shows: only cut what it can run as it stands.
        found = cut(analyse(network, **options, keep_forward=True))
        if not fits(found.model):
            warnings.warn("compact() cannot keep this network's outputs, and returns it whole", stacklevel=2)
            found = cut(analyse(network, whole=True))
    small = found.model
    set_plans(small, [*plans_of(model), found.plan] if found.slices else plans_of(model))
    return small if optimizer is None else (small, cut_optimizer(optimizer, model, found))


def apply_plan(model: nn.Module, plan: Plan, leaves: Iterable[Any] = ()) -> nn.Module:
    """Cut a network as another of the same architecture was cut; the weights are whatever they are."""
    device = next(iter(model.parameters()), torch.empty(0)).device
    inputs = tuple(
        torch.zeros(each["shape"], dtype=getattr(torch, each["dtype"]), device=device) for each in plan.inputs
    )
    network = trace(model, inputs, leaves)
    analysis = analyse(network, keep_forward=plan.keep_forward, couple=plan.couple, whole=True)
    flows = {node.name: flow for node, flow in analysis.flows.items()}
    for name, kept in plan.kept.items():
        flow = flows.get(name)
        if flow is None or not kept or not 0 <= min(kept) <= max(kept) < flow.width:
            raise ValueError(f"the plan is for another architecture: {name!r} has no such channels here")
        flow.needed = torch.zeros_like(flow.needed).index_fill(0, torch.tensor(kept), True)
        flow.constant = torch.zeros_like(flow.constant)
        for channel, value in plan.constants.get(name, {}).items():
            flow.constant[int(channel)] = value
    small = cut(analysis).model
    set_plans(small, [*plans_of(model), plan])
    return small


@torch.no_grad()
def _agree(model: nn.Module, small: nn.Module, inputs: tuple[Any, ...], training: bool = False) -> bool:
    """Whether two modules give the same on the example."""
    outputs = []
    for module in (model, small):
        try:
            with in_mode(module, training), torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                outputs.append(pytree.tree_leaves(module(*inputs)))
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
            return False
    return all(_near(mine, theirs) for mine, theirs in zip(*outputs, strict=True))


def _near(mine: Any, theirs: Any) -> bool:
    """Whether two tensors are the same up to rounding; other outputs are not looked at."""
    if not isinstance(mine, Tensor):
        return True
    if mine.shape != theirs.shape:
        return False
    near = (100 * torch.finfo(mine.dtype).eps) ** 0.5 if mine.is_floating_point() else 0.0
    scale = float(mine.nan_to_num(0.0, 0.0, 0.0).abs().max()) if mine.numel() else 0.0
    return torch.allclose(mine, theirs, rtol=near, atol=near * max(scale, 1e-30), equal_nan=True)
