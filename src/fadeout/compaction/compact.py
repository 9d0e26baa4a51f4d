"""Dead channels become a smaller module."""

from collections.abc import Iterable
from typing import Any, overload

import torch
from torch import nn
from torch.optim import Optimizer

from fadeout._arguments import ExampleInput, Leaves, checked, shown
from fadeout._checks import warn
from fadeout.compaction.cut import Cut, cut
from fadeout.compaction.fold import fold
from fadeout.compaction.optimizer_state import cut_optimizer
from fadeout.compaction.plan import Plan, plans_of, set_plans
from fadeout.compaction.remaining_zeros import why_zeros_stay
from fadeout.graph.analysis import Analysis, analyse
from fadeout.graph.example import Example
from fadeout.graph.network import Network
from fadeout.graph.outputs import agree, of_other_sizes
from fadeout.graph.side_effects import copied, keeps
from fadeout.graph.trace import trace
from fadeout.torch_bridge.parameters import clean, unwrap


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
    example_input: ExampleInput,
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
    written in it, or computed with), it is a ``torch.fx.GraphModule`` with the same parameter names.

    Where channels are zero and stay although something could be done about it, a warning says how many, in
    which layers, why, and what to do.

    Args:
        model: the network.
        example_input: a tensor, a tuple of positional arguments, or a mapping of keyword arguments. Branches
            of the forward are taken as it decides them; outputs are compared on it, and on random numbers,
            another batch size and another image size if the network takes them.
        optimizer: also carry over its state (momentum, Adam's moments) and return (module, optimizer).
        couple: both sides of an addition keep the same channels, so that no channels are gathered by index.
        for_inference: also do what holds only in evaluation mode: fold constants that come out of running
            statistics, and make batch-norms part of the convolution or linear layer before them; and let
            channels lie in an order in which fewer are gathered by index (both not where an optimizer is
            given).
        leaves: modules, or classes of modules, that cannot or shall not be traced; they keep all their
            channels.

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
    if any(one.is_meta for one in (*model.parameters(), *model.buffers())):
        raise ValueError(
            "the model is on the device 'meta', where weights have no values: what is zero cannot be found. "
            "Call model.to_empty(device='cpu'), load its weights, and compact it then"
        )
    with torch.inference_mode(False):  # so that what comes out can be trained
        network = trace(model, example_input, leaves)
        examples = [network.example, *of_other_sizes(model, network.example)]
        folds = for_inference and optimizer is None  # with one, training goes on
        analysis, found, fits = _smallest(network, examples, couple, for_inference, folds)
        if fits:
            message = why_zeros_stay(
                analysis, lambda other: _size(cut(other, fold=other.for_inference).model)
            )
        else:
            before, after = _size(model), _size(found.model)
            message = (
                "compact() cannot keep this network's outputs, and returns it whole: of its "
                f"{before:,} parameters {before - after:,} belong to dead channels, and stay"
            )
            if not for_inference and _smallest(network, examples, couple, for_inference=True)[-1]:
                message += ". Where it is trained no more, pass for_inference=True: then they go"
            found = cut(analyse(network, whole=True))
        if message is not None:
            warn(message)
        small = found.model
        set_plans(
            small, [*plans_of(model), found.plan] if found.slices or found.plan.folded else plans_of(model)
        )
        return small if optimizer is None else (small, cut_optimizer(optimizer, model, found))


def _smallest(
    network: Network, examples: list[Example], couple: bool, for_inference: bool, folds: bool = False
) -> tuple[Analysis, Cut, bool]:
    """The smallest network that is found, and whether its outputs are the same."""
    model = network.model
    # as Channels counts
    keep_forward = keeps(network.graph) or (not network.rewritable and not for_inference)

    def fits(found: Cut) -> bool:
        if keep_forward and found.rewritten:
            return False
        if not all(agree(model, found.model, each) for each in examples):
            return False
        if not keep_forward or for_inference:
            return True
        # The graph is that of evaluation mode; in training mode running statistics move, so on copies.
        one, two, three, small = (copied(each) for each in (model, model, model, found.model))
        repeats = agree(one, two, network.example, training=True, seeds=(0, 1))  # what is random does not
        return not repeats or agree(three, small, network.example, training=True)

    def attempt(keep: bool, rewrite: bool = False) -> tuple[Analysis, Cut]:
        analysis = analyse(network, for_inference=for_inference, couple=couple, keep_forward=keep)
        return analysis, cut(analysis, folds, rewrite)

    analysis, found = attempt(keep_forward)
    # Where the user's forward computes with numbers of channels, the graph has what they were. Where it does
    # more than the graph shows, only what it can run as it stands is cut.
    stands_in = found.slices and (network.rewritable or (for_inference and network.holds))
    for keep, rewrite in (*([(False, True)] if stands_in else []), (True, False)):
        if fits(found):
            return analysis, found, True
        analysis, found = attempt(keep, rewrite)
    return analysis, found, fits(found)


def apply_plan(model: nn.Module, plan: Plan, leaves: Iterable[Any] = ()) -> nn.Module:
    """Cut a network as another of the same architecture was cut; the weights are whatever they are."""
    device = next(iter(model.parameters()), torch.empty(0)).device
    network = trace(model, plan.example(device), leaves)
    analysis = analyse(network, keep_forward=plan.keep_forward, couple=plan.couple, whole=True)
    flows = {node.name: flow for node, flow in analysis.flows.items()}
    for name, kept in plan.kept.items():
        flow = flows.get(name)
        if flow is None or not kept or not 0 <= min(kept) <= max(kept) < flow.width:
            raise ValueError(f"the plan is for another architecture: {name!r} has no such channels here")
        flow.order = torch.tensor(kept)
        flow.needed = torch.zeros_like(flow.needed).index_fill(0, flow.order, True)
        flow.constant = torch.zeros_like(flow.constant)
        for channel, value in plan.constants.get(name, {}).items():
            flow.constant[int(channel)] = value
    small = cut(analysis, rewrite=plan.rewrite).model
    names = {clean(small, name): name for name, _ in small.named_modules()}
    for layer, norm in plan.folded.items():
        fold(small, names.get(layer, layer), names.get(norm, norm))
    set_plans(small, [*plans_of(model), plan])
    return small


def _size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
