"""The modules of a network: of which kinds they are, and others in the place of some."""

from collections.abc import Mapping

from torch import nn


def replaced(model: nn.Module, others: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """The network with other modules in the place of some, wherever it has these; perhaps of itself.

    Encoders of torch that hold one of them call their layers one by one from then on: in evaluation mode
    they would hand all weights of a layer to one fused call, or nested tensors to what does not take them.

    >>> layer = nn.Linear(2, 2)
    >>> replaced(nn.Sequential(layer, nn.ReLU(), layer), {layer: nn.Tanh()})
    Sequential(
      (0): Tanh()
      (1): ReLU()
      (2): Tanh()
    )
    """
    for owner in list(model.modules()):
        if isinstance(owner, nn.TransformerEncoder) and others.keys() & set(owner.modules()):
            owner.use_nested_tensor = False
        if isinstance(owner, nn.TransformerEncoderLayer) and others.keys() & set(owner.modules()):
            owner.activation_relu_or_gelu = 0
        for name, child in owner._modules.items():
            if child is not None and child in others:
                owner._modules[name] = others[child]
    return others.get(model, model)


def has_kind(model: nn.Module, *words: str) -> bool:
    """Whether the name of a module's class, or of one that it derives from, has one of these words in it.

    >>> has_kind(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "norm")
    True
    """
    kinds = {kind.__name__.lower() for module in model.modules() for kind in type(module).__mro__}
    return any(word in kind for kind in kinds for word in words)
