"""Other modules in the place of some of a network's."""

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
