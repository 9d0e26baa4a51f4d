"""Weights that a network computes from other parameters: parametrizations, weight_norm, masks of torch."""

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from fadeout.torch_bridge.parameters import clean, named


def check_stored(model: nn.Module, names: Iterable[str]) -> None:
    """Raise where a prunable parameter is not a weight itself, and zeros in it would be no zeros of that."""
    everything, reasons = named(model), {id(p): reason for p, reason in _computed(model)}
    for name in names:
        if id(everything[name]) in reasons:
            raise ValueError(f"{name!r} is not a weight itself: {reasons[id(everything[name])]}")


def torch_masks(model: nn.Module) -> dict[str, Tensor]:
    """The masks of ``torch.nn.utils.prune`` that are active in a network, by the name of the weight."""
    return {clean(model, f"{path}.{kind}".lstrip(".")): mask for path, _, kind, mask in _pruned(model)}


def computers(module: nn.Module) -> Iterator[tuple[str, str, str]]:
    """What computes weights of a module: name of the weight, what computes it, the call that ends it.

    >>> list(computers(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))))
    [('weight', 'WeightNorm', "torch.nn.utils.parametrize.remove_parametrizations(module, 'weight')")]
    """
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, BasePruningMethod):
            kind = hook._tensor_name  # pyright: ignore[reportAttributeAccessIssue]
            yield kind, "a mask of torch.nn.utils.prune", f"torch.nn.utils.prune.remove(module, {kind!r})"
        elif isinstance(hook, WeightNorm):
            yield hook.name, "weight_norm", f"torch.nn.utils.remove_weight_norm(module, {hook.name!r})"
        elif isinstance(hook, SpectralNorm):
            yield hook.name, "spectral_norm", f"torch.nn.utils.remove_spectral_norm(module, {hook.name!r})"
    lists: Any = module.parametrizations if is_parametrized(module) else {}
    for kind, parts in lists.items():
        classes = ", ".join(type(one).__name__.lstrip("_") for one in parts)
        yield kind, classes, f"torch.nn.utils.parametrize.remove_parametrizations(module, {kind!r})"


def _computed(model: nn.Module) -> Iterator[tuple[nn.Parameter, str]]:
    """The parameters from which weights are computed, and why they cannot be pruned."""
    for path, module, kind, _ in _pruned(model):
        yield (
            getattr(module, f"{kind}_orig"),
            f"a mask of torch.nn.utils.prune is active on {kind!r} of {_shown(path)}, which a pruner would "
            f"not see. Keep it with masks = fadeout.Masks.from_torch_prune(model), make it permanent with "
            f"torch.nn.utils.prune.remove(module, {kind!r}), then build the pruner; masks.hold(model, "
            "optimizer) keeps its zeros",
        )
    for path, module in model.named_modules():
        lists: Any = module.parametrizations if is_parametrized(module) else {}
        for kind, how, fold in computers(module):
            if how == "weight_norm":
                for part in ("g", "v"):
                    yield getattr(module, f"{kind}_{part}"), _advise(path, kind, how, fold, f"{kind}_")
            elif kind in lists and not _keeps_zeros(lists[kind]):
                for parameter in lists[kind].parameters():
                    yield parameter, _advise(path, kind, how, fold, "parametrizations")


def _advise(path: str, kind: str, how: str, fold: str, part: str) -> str:
    return (
        f"{how} computes {kind!r} of {_shown(path)} from it, and zeros in it are no zeros there, or a row of "
        f"them is NaN. Fold it before the optimizer and the pruner are built ({fold}), or leave it out: "
        f"prunable=lambda name, p: p.dim() >= 2 and {part!r} not in name"
    )


def _shown(path: str) -> str:
    return f"the module {path!r}" if path else "the model"


def _pruned(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
    """The path of a module, itself, the name of its masked weight and the mask."""
    for path, module in model.named_modules():
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, BasePruningMethod):
                kind = hook._tensor_name  # pyright: ignore[reportAttributeAccessIssue]
                yield path, module, kind, getattr(module, f"{kind}_mask") != 0


@torch.no_grad()
def _keeps_zeros(parts: ParametrizationList) -> bool:
    """Whether zeros of what is stored are zeros of the weight, and a row of them does no harm, on a trial."""
    stored = getattr(parts, "original", None)
    if stored is None:  # several, as the magnitude and the direction of weight_norm
        return False
    trial = copy.deepcopy(parts).eval()
    gone = torch.zeros_like(stored, dtype=torch.bool)
    gone.view(-1)[::2] = True
    gone[:1] = True
    trial.original.masked_fill_(gone, 0)
    weight = trial()
    return weight.shape == stored.shape and bool(weight.isfinite().all()) and not bool(weight[gone].any())
