"""Notice that somebody runs or saves a network while it is not to be looked at."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle


class Tripwire:
    """While it is armed, call something before a network runs, gives its ``state_dict()`` or loads one.

    It is armed for the length of a step, in which nobody does: one that is armed after it was left so by an
    exception. Between steps the network has no hook, which would make a compiled one compile again.

    >>> model = nn.Linear(2, 2)
    >>> wire = Tripwire(model, lambda: print("looked at"))
    >>> wire.arm()
    >>> state = model.state_dict()
    looked at
    >>> wire.disarm()
    >>> state = model.state_dict()
    """

    def __init__(self, model: nn.Module, call: Callable[[], None]):
        self._model, self._call = model, call
        self._handles: list[RemovableHandle] = []

    def arm(self) -> None:
        """Begin to watch. A second call does nothing, nor does one for a script, which takes no hooks."""
        if not self._handles and not isinstance(self._model, torch.jit.ScriptModule):
            model, trip = self._model, functools.partial(_outside_compiled_code(), self._call)
            self._handles.append(model.register_forward_pre_hook(trip))
            self._handles.append(model.register_state_dict_pre_hook(trip))
            self._handles.append(model.register_load_state_dict_pre_hook(trip))

    def disarm(self) -> None:
        """Watch no more. A second call does nothing."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


@functools.cache  # not before it is needed: it imports a compiler, which takes a second
def _outside_compiled_code() -> Any:
    """A hook that calls what it is given first."""
    return torch.compiler.disable(lambda call, *given: call())
