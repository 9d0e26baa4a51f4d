"""How a ``torch.fx.GraphModule`` comes out of a pickle: its code is traced once more."""

from typing import Any

import torch
from torch import fx

_NAMES = """arange as_tensor empty eye full linspace ones rand randint randn randperm scalar_tensor tensor
    tril_indices triu_indices zeros"""
_MAKERS = tuple(getattr(torch, name) for name in _NAMES.split())


class Retracer(fx.Tracer):
    """A tracer that follows sizes into calls which make tensors, as ``torch.ones(n, n)``.

    Torch hands a call on to the tracer where one of the arguments is a tensor, and here none is.
    """

    def __init__(self) -> None:
        super().__init__(autowrap_functions=_MAKERS)
        self._autowrap_search.append(torch)  # where the code of a graph looks them up

    def trace(self, *args: Any, **kwargs: Any) -> fx.Graph:
        graph = super().trace(*args, **kwargs)
        for node in graph.nodes:
            if node.target in _MAKERS:
                node.meta.pop("is_wrapped", None)  # or the code would wrap the name in its own globals
        return graph
