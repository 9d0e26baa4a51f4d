"""How far a training is, counted in optimizer steps."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """The counter of a pruner's steps.

    Args:
        steps: the optimizer steps of the whole training.

    >>> clock = Clock(steps=4)
    >>> clock.tick()
    >>> clock.step, clock.progress
    (1, 0.25)
    """

    def __init__(self, steps: int):
        self.steps, self.step = steps, 0

    @property
    def progress(self) -> float:
        """0 before the first step, ``s / steps`` after ``s`` steps, 1 at most."""
        return min(self.step / self.steps, 1.0)

    @contextmanager
    def a_step_ago(self) -> Iterator[None]:
        """The last step once more, for a while: what was decided at its end is decided alike.

        >>> clock = Clock(steps=4)
        >>> clock.tick()
        >>> with clock.a_step_ago():
        ...     print(clock.step)
        0
        >>> clock.step
        1
        """
        self.step -= 1
        try:
            yield
        finally:
            self.step += 1

    def tick(self) -> None:
        """A step is over; the first one too many is warned of."""
        self.step += 1
        if self.step == self.steps + 1:
            warnings.warn(
                f"more steps than the steps={self.steps} that the pruner was built for: its final strength "
                "is held. Pass the number of optimizer steps of the whole training",
                stacklevel=2,
            )
