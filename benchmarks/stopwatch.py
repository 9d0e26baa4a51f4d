"""How long the hooks take that a pruner puts on an optimizer."""

import time
from collections.abc import Callable

from torch.optim import Optimizer


class Stopwatch:
    """Times the hooks that others put on an optimizer inside the ``with``.

    Args:
        optimizer: whose hooks.
        clock: gives seconds.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    >>> with Stopwatch(optimizer) as watch:
    ...     _ = optimizer.register_step_post_hook(lambda *_: time.sleep(0.01))
    >>> optimizer.step()
    >>> watch.seconds >= 0.01
    True
    """

    def __init__(self, optimizer: Optimizer, clock: Callable[[], float] = time.perf_counter):
        self.seconds = 0.0
        """Of the last step."""
        self._optimizer, self._clock, self._start = optimizer, clock, 0.0

    def __enter__(self) -> "Stopwatch":
        self._optimizer.register_step_pre_hook(self._before)
        self._optimizer.register_step_post_hook(self._begin)
        return self

    def __exit__(self, *_: object) -> None:
        self._optimizer.register_step_pre_hook(self._end)
        self._optimizer.register_step_post_hook(self._end)

    def _before(self, *_: object) -> None:
        self.seconds = 0.0
        self._begin()

    def _begin(self, *_: object) -> None:
        self._start = self._clock()

    def _end(self, *_: object) -> None:
        self.seconds += self._clock() - self._start
