"""Networks through Torch-Pruning, as its own guide says, and whether what comes out is what the cut says."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fadeout.graph.example import Example, tensors_in

RATIO = 0.225  # of the channels of every layer: where inputs and outputs both lose it, 40 % of the weights go


def prune(
    model: nn.Module,
    examples: list[Example],
    difference: Callable[[nn.Module, nn.Module, list[Example]], float],
) -> dict[str, Any]:
    """Prune by magnitude, run what is left, and compare it with the network whose cut channels are zero.

    Layers that make the outputs are left alone, and attentions are told how many heads they have, as in the
    guide's examples for timm and transformers.
    """
    import torch_pruning as tp  # pyright: ignore[reportMissingImports]

    before = sum(p.numel() for p in model.parameters())
    zeroed, names = copy.deepcopy(model), {module: name for name, module in model.named_modules()}
    example: Any = examples[0].kwargs or examples[0].args
    given: Any = example if isinstance(example, dict) or len(example) > 1 else example[0]
    heads = _heads(model)
    pruner: Any = tp.pruner.BasePruner(
        model,
        given,
        importance=tp.importance.MagnitudeImportance(p=2),
        pruning_ratio=RATIO,
        ignored_layers=_makers(model, examples[0]),
        num_heads={layer: number for _, layers, number in heads for layer in layers},
        output_transform=lambda out: sum(one.float().sum() for one in tensors_in(out)),
    )
    left: dict[nn.Module, torch.Tensor] = {}  # by module, its channels that are still there
    told = True  # whether it says of all that is cut which channel of which layer that was
    with torch.no_grad():
        for group in pruner.step(interactive=True):
            for dependency, channels in group:
                module = dependency.target.module
                if module in names and pruner.DG.is_out_channel_pruning_fn(dependency.handler):
                    twin = zeroed.get_submodule(names[module])
                    told = _zero(twin, module, list(channels), left) and told
            group.prune()
    for attention, layers, _ in heads:
        _tell(attention, layers, pruner.num_heads)
    if hasattr(model, "hidden_dim") and hasattr(model, "conv_proj"):  # torchvision's vision transformer
        model.hidden_dim = model.conv_proj.out_channels  # pyright: ignore
    record: dict[str, Any] = {"gone": 1 - sum(p.numel() for p in model.parameters()) / before}
    found = difference(zeroed, model, examples)  # an error here is one of the smaller network
    record["difference"] = found if told else None
    return record


def _makers(model: nn.Module, example: Example) -> list[nn.Module]:
    """The layers whose outputs are outputs of the network, or have their numbers of classes."""
    made: list[tuple[nn.Module, Any]] = []
    handles = [
        module.register_forward_hook(lambda module, _, output: made.append((module, output)))
        for module in model.modules()
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose2d)
    ]
    args, kwargs = example.fresh()
    with torch.no_grad():
        outputs = tensors_in(model(*args, **kwargs))
    for handle in handles:
        handle.remove()
    storages = {one.untyped_storage().data_ptr() for one in outputs}
    last = [made[-1][0]] if made else []
    return [*last, *(m for m, out in made if out.untyped_storage().data_ptr() in storages)]


_NUMBERS = ("num_heads", "num_attention_heads", "n_heads")
_PROJECTIONS = (
    ("qkv",),
    ("query", "key", "value"),
    ("q_proj", "k_proj", "v_proj"),
    ("q_lin", "k_lin", "v_lin"),
)


def _heads(model: nn.Module) -> list[tuple[nn.Module, list[nn.Module], int]]:
    """The attentions, their projections, and how many heads they have."""
    found = []
    for module in model.modules():
        number = next((n for name in _NUMBERS if isinstance(n := getattr(module, name, None), int)), None)
        for names in _PROJECTIONS:
            if number and all(isinstance(getattr(module, name, None), nn.Linear) for name in names):
                found.append((module, [getattr(module, name) for name in names], number))
    return found


def _tell(attention: Any, layers: list[nn.Module], numbers: dict[nn.Module, int]) -> None:
    """Give an attention the sizes that it has now."""
    width = layers[0].out_features // (3 if len(layers) == 1 else 1)  # pyright: ignore
    number = numbers[layers[0]]
    each = {"head_dim": width // number, "attention_head_size": width // number, "all_head_size": width}
    for name, value in {**dict.fromkeys(_NUMBERS, number), **each, "attn_dim": width}.items():
        if isinstance(getattr(attention, name, None), int):
            setattr(attention, name, value)


def _zero(twin: Any, module: nn.Module, channels: list[int], left: dict[nn.Module, torch.Tensor]) -> bool:
    """Set the channels that a module loses to zero in its twin, which loses none; whether it has such."""
    weight = getattr(twin, "weight", None)
    if not isinstance(weight, torch.Tensor):
        return True
    transposed = isinstance(twin, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d)
    dim = 1 if transposed or isinstance(twin, nn.Embedding) else 0
    now = left.get(module, torch.arange(weight.shape[dim]))
    if channels and max(channels) >= len(now):
        return False
    gone = now[torch.tensor(channels, dtype=torch.long)]
    left[module] = now[~torch.isin(now, gone)]
    weight.index_fill_(dim, gone, 0.0)
    bias: Any = getattr(twin, "bias", None)
    if bias is not None:
        bias.index_fill_(0, gone, 0.0)
    return True
