"""Which parameters take part, under the names that the user's own model gives them."""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from fadeout._arguments import shown
from fadeout.torch_bridge.rank_agreement import ranks_of
from fadeout.torch_bridge.sharding import local, mesh_group

Prunable = Callable[[str, nn.Parameter], bool] | Iterable[str]

_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel, AveragedModel)
_AROUND = ("_orig_mod", "_forward_module")  # where torch.compile and Fabric keep the module that they wrap
# children that these and the checkpoint and sharding wrappers put between a module and its own
_INSERTED = (*_AROUND, "_original_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_MOMENTA = ("momentum_buffer", "exp_avg")  # of SGD, RMSprop and Muon, and of Adam's kin


def named(model: nn.Module) -> dict[str, nn.Parameter]:
    """The model's parameters, tied ones once, by names without a wrapper's prefix.

    >>> list(named(nn.DataParallel(nn.Linear(2, 2))))
    ['weight', 'bias']
    """
    return {clean(model, name): parameter for name, parameter in model.named_parameters()}


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module, inside DDP, ``torch.compile``, ``AveragedModel`` or Fabric's wrapper.

    >>> unwrap(nn.DataParallel(nn.Linear(2, 2)))
    Linear(in_features=2, out_features=2, bias=True)
    """
    return _layers(model)[-1]


def group_of(model: nn.Module) -> Any:
    """The processes among which DDP shares out a model; None where it is not wrapped by it."""
    parallel = nn.parallel.DistributedDataParallel
    return next((layer.process_group for layer in _layers(model) if isinstance(layer, parallel)), None)


def _layers(model: nn.Module) -> list[nn.Module]:
    """A model, what it wraps, and so on down to the user's own module."""
    layers = [model]
    while True:
        model = layers[-1]
        around = ("module",) if isinstance(model, _WRAPPERS) else _AROUND
        inside = next((model._modules[name] for name in around if name in model._modules), None)
        if inside is None:
            return layers
        layers.append(inside)


def partners(model: Any) -> tuple[int, ...]:
    """The ranks of the processes that train a model together; none where it is this one alone."""
    group = None
    if isinstance(model, nn.Module) and ranks_of():
        group = group_of(model) or mesh_group(model.parameters())
    return ranks_of(group)


def has_two_dimensions(name: str, parameter: nn.Parameter) -> bool:
    """The default choice: matrices and filters, but neither biases nor norms."""
    return parameter.dim() >= 2


def choose(
    model: nn.Module, optimizers: Sequence[Optimizer] | None, prunable: Prunable
) -> dict[str, nn.Parameter]:
    """The prunable parameters: of the model, chosen by the user, trained, held by an optimizer.

    Args:
        optimizers: those that train it; None where training is over.
    """
    everything = named(model)
    held = {id(p) for p in everything.values()}
    if optimizers is not None:
        held &= held_by(optimizers)
    if not held:
        raise ValueError(
            "the optimizer holds none of the model's parameters: it was built for another model, or "
            "before the parameters were replaced. Build it from model.parameters(), then the pruner"
        )
    if callable(prunable):
        wanted = chosen_by(prunable, everything)
    else:
        wanted = _named_by_user(model, prunable, everything, held)
    chosen = {n: p for n, p in everything.items() if n in wanted and id(p) in held and p.requires_grad}
    chosen = {n: p for n, p in chosen.items() if p.is_floating_point() and p.numel()}
    check_kinds(chosen)
    if not chosen:
        raise ValueError(
            f"nothing to prune: of {len(everything)} parameters, {len(wanted)} are prunable, and none of "
            "these is a trained floating-point parameter that the optimizer holds. By default weights of "
            "two or more dimensions are prunable; choose others with prunable="
        )
    return chosen


def chosen_by(prunable: Prunable, everything: Mapping[str, nn.Parameter]) -> list[str]:
    """The names that a predicate chooses, or those that the user gave."""
    if not callable(prunable):
        names = [prunable] if isinstance(prunable, str) else list(prunable)
        for name in names:
            _check_exists(name, everything)
        return names
    try:
        return [name for name, parameter in everything.items() if prunable(name, parameter)]
    except Exception as error:
        raise ValueError(
            f"prunable is a predicate on (name, parameter), or names; {shown(prunable)} fails: {error}"
        ) from error


def _check_exists(name: str, everything: Mapping[str, object]) -> None:
    if name not in everything:
        near = difflib.get_close_matches(name, everything, n=3) or list(everything)[:3]
        raise ValueError(f"prunable names {name!r}, which the model does not have; it has {near} ...")


def check_kinds(parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise where the weights of a parameter cannot be compared with each other, or are not there at all."""
    for name, parameter in parameters.items():
        odd = (
            "nested"
            if parameter.is_nested
            else "sparse"
            if parameter.layout != torch.strided
            else "on the meta device, without any values"
            if parameter.is_meta
            else f"of type {str(parameter.dtype).removeprefix('torch.')}"
            if parameter.dtype.itemsize < 2
            else ""
        )
        if odd:
            raise ValueError(
                f"{name!r} is {odd}, and what is pruned is dense weights of float16, bfloat16, float32 or "
                "float64: leave it out with prunable=, or convert it before the pruner is built"
            )


def check_held(parameters: Mapping[str, nn.Parameter], optimizers: Sequence[Optimizer]) -> None:
    """Raise where a parameter is trained, but by none of these optimizers."""
    held = held_by(optimizers)
    missing = [name for name, p in parameters.items() if p.requires_grad and id(p) not in held]
    if missing:
        raise ValueError(
            f"the optimizer does not hold {_listed(missing)}: it trains another model, or was built before "
            "the parameters were replaced"
        )


def check_unchanged(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise where a model no longer has these parameters, by these names: they were replaced."""
    now = {clean(model, name): p for name, p in model.named_parameters(remove_duplicate=False)}
    replaced = [name for name, parameter in parameters.items() if now.get(name) is not parameter]
    if replaced:
        raise ValueError(
            f"{_listed(replaced)} of the model was replaced after the pruner was built (a new layer, tied "
            "weights, load_state_dict(assign=True)): what it prunes is no longer used. Change the model "
            "first, then build the optimizer, then the pruner"
        )


def frozen(model: nn.Module, prunable: Prunable) -> list[str]:
    """The prunable parameters that do not train, by name: a pruner leaves them alone."""
    if not callable(prunable):
        return []  # names are checked one by one
    everything = named(model)
    return [name for name in chosen_by(prunable, everything) if not everything[name].requires_grad]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def held_by(optimizers: Sequence[Optimizer]) -> set[int]:
    """The identities of all parameters that the optimizers hold."""
    return {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}


def momenta(optimizer: Optimizer, parameter: nn.Parameter) -> list[Tensor]:
    """What an optimizer has averaged of a parameter's gradients, this process's block; none before a step.

    >>> from torch.optim import SGD
    >>> layer = nn.Linear(2, 1)
    >>> momenta(SGD(layer.parameters(), lr=0.1, momentum=0.9), layer.weight)
    []
    """
    state = optimizer.state.get(parameter, {})
    return [local(state[key]) for key in _MOMENTA if isinstance(state.get(key), Tensor)]


def _named_by_user(
    model: nn.Module, names: Iterable[str], everything: dict[str, nn.Parameter], held: set[int]
) -> list[str]:
    """The parameters of these names, each by its first name: a tied parameter has several."""
    aliases = {clean(model, name): id(p) for name, p in model.named_parameters(remove_duplicate=False)}
    first = {id(parameter): name for name, parameter in everything.items()}
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        _check_exists(name, aliases)
        if aliases[name] not in held:
            raise ValueError(f"prunable names {name!r}, which the optimizer does not hold")
        if not everything[first[aliases[name]]].requires_grad:
            raise ValueError(
                f"prunable names {name!r}, which is frozen (requires_grad=False): unfreeze it before the "
                "pruner is built, or leave it out"
            )
    return [first[aliases[name]] for name in names]


def clean(model: nn.Module, name: str) -> str:
    """The name of a parameter or buffer, without what wrappers inside and around the model put into it."""
    kept, module = [], model
    *path, leaf = name.split(".")
    for part in path:
        if part not in _INSERTED and not isinstance(module, _WRAPPERS):
            kept.append(part)
        module = getattr(module, part, None)  # hooks on the state_dict may have made names of their own
    return ".".join([*kept, leaf])
