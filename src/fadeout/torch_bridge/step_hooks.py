"""The optimizers' own step hooks, made safe: one round of callbacks for each step that really happens."""

import inspect
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Rounds:
    """What is called in a round, that is, in one step of all the optimizers; by default nothing is done."""

    def open(self) -> None:
        """Once, when the first optimizer is about to step, before a closure evaluates anything."""

    def evaluation(self) -> AbstractContextManager[object]:
        """Around each evaluation of a closure."""
        return nullcontext()

    def begin(self) -> None:
        """Once, when the gradients are ready."""

    def join(self, optimizer: Optimizer, wants_loss: bool) -> Tensor | None:
        """Before each optimizer uses its gradients: add to them, and return what joins a closure's loss."""

    def between(self) -> None:
        """After each optimizer but the last: if the next is skipped, the round is left as it is now."""

    def onward(self) -> None:
        """Before each optimizer but the first: the round goes on."""

    def end(self) -> None:
        """Once, after the last optimizer has stepped."""

    def close(self) -> None:
        """Once, when :meth:`end` is done: the round is over."""


class StepHooks:
    """Call a :class:`Rounds` around the steps of one or several optimizers.

    - A closure zeroes and recomputes the gradients, perhaps many times in a step (LBFGS). It is
      wrapped, so that ``join`` follows every evaluation and ``begin`` the first.
    - A fused optimizer under ``GradScaler`` runs its hooks on steps that it skips because of
      infinities; those are no rounds.
    - With several optimizers the round ends after the last of them has stepped, in any order. When one
      of them begins again before that, or the one that began the last whole round does and there are new
      gradients, another was skipped or a step failed: a new round begins.
    - An optimizer of one's own may call the ``step`` of its base class, which has the same hooks: only the
      outer step counts.
    - The hooks stay outside ``torch.compile``d steps, which would recompile at every count.

    Args:
        ahead: False where only ``end`` does something: a single optimizer then has no hook before its step.
    """

    def __init__(self, optimizers: Sequence[Optimizer], rounds: Rounds, ahead: bool = True):
        self._optimizers, self._rounds = list(optimizers), rounds
        self._first: int | None = None  # the optimizer that began the last whole round
        self._reset()
        before: Any = torch.compiler.disable(self._before)
        after: Any = torch.compiler.disable(self._after)
        for optimizer in self._optimizers:
            optimizer._patch_step_function()  # as Optimizer.__init__ does, which Lookahead does not call
        self._handles = [optimizer.register_step_post_hook(after) for optimizer in self._optimizers]
        if ahead or len(self._optimizers) > 1:
            self._handles += [optimizer.register_step_pre_hook(before) for optimizer in self._optimizers]

    def remove(self) -> None:
        """Take the hooks off the optimizers. A second call does nothing."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _reset(self) -> None:
        self._begun, self._joined, self._stepped = False, list[int](), set[int]()
        self._used = list[tuple[Tensor, weakref.ref[Tensor], int]]()  # gradients of those that have stepped

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]):
        if _is_skipped(optimizer) or _is_inner(optimizer):
            return None
        comes_late = id(optimizer) == self._first and bool(self._joined)
        if id(optimizer) in self._joined or (comes_late and self._has_new_gradients()):
            self._reset()
        with torch.no_grad():
            if self._joined:
                self._rounds.onward()
            else:
                self._rounds.open()
        self._joined.append(id(optimizer))
        # args[0] is the optimizer itself
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._join(optimizer, wants_loss=False)
            return None
        wrapped = self._wrap(closure, optimizer)
        if len(args) > 1:
            return (args[0], wrapped, *args[2:]), kwargs
        return args, {**kwargs, "closure": wrapped}

    def _wrap(self, closure: Callable[[], Any], optimizer: Optimizer) -> Callable[[], Any]:
        def evaluate():
            try:
                with self._rounds.evaluation():
                    loss = closure()
            except BaseException:  # Ctrl-C, too: what is evaluated or saved then is what it is between steps
                with torch.no_grad():
                    self._rounds.between()
                raise
            extra = self._join(optimizer, wants_loss=True)
            return loss if loss is None or extra is None else loss + extra

        return evaluate

    def _join(self, optimizer: Optimizer, wants_loss: bool) -> Tensor | None:
        with torch.no_grad():
            if not self._begun:
                self._rounds.begin()
                self._begun = True
            return self._rounds.join(optimizer, wants_loss)

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if _is_skipped(optimizer) or _is_inner(optimizer):
            return
        self._stepped.add(id(optimizer))
        is_last = len(self._stepped) == len(self._optimizers)
        with torch.no_grad():
            if not is_last:
                self._rounds.between()
                self._used += _gradients_of(optimizer)
                return
            self._first = self._joined[0] if self._joined else None
            self._reset()
            self._rounds.end()
            self._rounds.close()

    def _has_new_gradients(self) -> bool:
        """Whether those that were used in this round are gone, or have been written into."""
        return not self._used or any(
            parameter.grad is None or parameter.grad is not used() or parameter.grad._version != version
            for parameter, used, version in self._used
        )


def _gradients_of(optimizer: Optimizer) -> list[tuple[Tensor, weakref.ref[Tensor], int]]:
    """One gradient of an optimizer, with its parameter and its version; none where there is none."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    some = next((parameter for parameter in parameters if parameter.grad is not None), None)
    return [] if some is None else [(some, weakref.ref(some.grad), some.grad._version)]


def gradient_scale(optimizer: Optimizer) -> float:
    """By how much the gradients are scaled inside the step of a fused optimizer, under ``GradScaler``."""
    scale = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else float(scale)


def check_outside_backward() -> None:
    """Raise where an optimizer steps from a hook on a gradient, while others are still being computed."""
    if torch._C._current_graph_task_id() != -1:
        raise ValueError(
            "an optimizer steps inside backward(), where latent weights cannot be put in and out of the "
            "network: step when backward() is done, or pass fade=fadeout.Progressive()"
        )


def _is_skipped(optimizer: Optimizer) -> bool:
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf)


def _is_inner(optimizer: Optimizer) -> bool:
    """Whether another step of this optimizer, with hooks as well, is running and has called this one."""
    return _steps_in(inspect.currentframe(), optimizer) > 1


def is_stepping(optimizer: Optimizer) -> bool:
    """Whether a step of this optimizer has begun and is not over, in whichever thread."""
    return any(_steps_in(frame, optimizer) for frame in sys._current_frames().values())


def _steps_in(frame: FrameType | None, optimizer: Optimizer) -> int:
    """How many steps of this optimizer a frame is in."""
    running = 0
    while frame is not None:
        running += frame.f_code is _HOOKED and frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return running


# what torch makes of every class's step: the hooks are called there
_HOOKED = Optimizer.profile_hook_step(lambda optimizer: None).__code__
