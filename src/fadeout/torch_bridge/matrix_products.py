"""How many multiply-accumulates the convolutions and matrix products take that run meanwhile."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


@contextmanager
def counting_products() -> Iterator[Callable[[], int]]:
    """Hands out what says how many multiply-accumulates there were so far, whoever asked for them.

    >>> with counting_products() as so_far:
    ...     result = torch.ones(2, 3) @ torch.ones(3, 4)
    >>> so_far()
    24
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        # Fused attention hides its products from the counter on some devices: use the plain form.
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        counter = FlopCounterMode(display=False, custom_mapping=_FUSED)
        counter.mod_tracker = _OfAllModules()  # pyright: ignore[reportAttributeAccessIssue]
        stack.enter_context(counter)
        yield lambda: counter.get_total_flops() // 2


class _OfAllModules(nullcontext):
    """In place of PyTorch's own, whose hooks fail where a module is given a view of a parameter."""

    parents = frozenset({"Global"})


def _layer(given: Any, of_inputs: Any, of_units: Any, *_: Any, **__: Any) -> int:
    """A recurrent layer in one direction, which PyTorch's counter does not know."""
    return 2 * math.prod(given[:-1]) * (math.prod(of_inputs) + math.prod(of_units))


def _layers(given: Any, weights: Any, *_: Any, **__: Any) -> int:
    """All layers and directions of a recurrent network at once."""
    return 2 * math.prod(given[:-1]) * sum(math.prod(each) for each in weights if len(each) > 1)


_FUSED = {torch.ops.aten.mkldnn_rnn_layer: _layer, torch.ops.aten._cudnn_rnn: _layers}
