"""Fades: how a targeted weight goes to zero.

At every step the pruner asks its fade for the *dose* of each parameter group and applies it to the
targeted weights, either to their gradient before the step or to the weights after it. A fade of one's
own is a subclass of :class:`Fade`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fadeout._arguments import Only, checked, fitted, shown
from fadeout._clock import Clock
from fadeout.schedules import Schedule, as_schedule, cubic, smooth
from fadeout.selection.floats import exact, root_


class Dose(NamedTuple):
    """What a fade says of a step: how many weights are targeted, and how strongly they fade."""

    share: float
    """How far the target has grown: 1 is all the way. See :meth:`Fade.targeted`."""
    amounts: dict[str, float]
    """By the name of a parameter, the dose that its targeted weights get."""


class Fade(ABC):
    """What every fade can be asked; the defaults are those of a full target, faded after the step.

    A fade says what its ``dose`` is, and what that does: to the weights after the step (``shrink``), or, with
    ``on_gradient``, to the gradient before it (``gradient``, and ``loss`` for closures).
    """

    _in_words: ClassVar[str] = "fadeout.Latent(), fadeout.Progressive() or fadeout.Decay(...)"
    on_gradient: bool = False
    """Act on the gradient, before the step, rather than on the weight, after it."""

    selective: bool = True
    """Act on the targeted weights only, rather than on all prunable weights alike."""

    latent: bool = False
    """The optimizer steps dense latent weights, and the network runs on what a threshold leaves of them."""

    def settles(self, progress: float, steps: int) -> bool:
        """Whether what is targeted at this step stays so, where there are latents."""
        return False

    def check(self, group: Mapping[str, Any], label: str) -> None:
        """Raise a ``ValueError`` where a parameter group of the optimizer lacks what the fade needs."""
        return None

    def target(self, progress: float, steps: int) -> float:
        """How far the target has grown at this step, from 0 to 1, which is all the way."""
        return 1.0

    def targeted(self, sparsity: float, share: float) -> float:
        """The sparsity that is targeted when the target has grown so far; by default that fraction of it.

        Args:
            sparsity: the final one.
            share: how far the target has grown.
        """
        return sparsity * share

    @abstractmethod
    def dose(self, progress: float, steps: int, group: Mapping[str, Any]) -> float:
        """How much of the fade a weight of this parameter group gets at this step."""

    def now(self, clock: Clock, groups: Mapping[str, Mapping[str, Any]]) -> Dose:
        """How many and how strongly, at this step, in one answer.

        Args:
            clock: how far the training is.
            groups: the parameter group of each parameter, by name.
        """
        progress, steps = clock.progress, clock.steps
        distinct = {id(group): group for group in groups.values()}
        # plain numbers, as some are part of the pruner's state
        amounts = {key: float(self.dose(progress, steps, group)) for key, group in distinct.items()}
        return Dose(
            self.target(progress, steps), {name: amounts[id(group)] for name, group in groups.items()}
        )

    def add(self, dose: float, more: float) -> float:
        """The dose that does what two do one after the other."""
        return dose + more

    def shrink(self, weight: Tensor, dose: float) -> Tensor:
        """The weights after a dose, where the fade acts after the step."""
        raise NotImplementedError(f"{type(self).__name__} has no shrink()")

    def gradient(self, weight: Tensor, dose: float) -> Tensor:
        """What joins the gradient, where the fade acts before the step."""
        raise NotImplementedError(f"{type(self).__name__} has no gradient()")

    def loss(self, weight: Tensor, dose: float) -> Tensor:
        """The penalty whose gradient that is; optimizers that evaluate a closure need it."""
        raise NotImplementedError(f"{type(self).__name__} has no loss()")

    def multiplier(self, dose: float) -> float | None:
        """What a dose multiplies a weight by, where it does just that: it can then be done more quickly."""
        return None

    def factor(self, progress: float, steps: int, group: Mapping[str, Any]) -> float:
        """What a targeted weight is multiplied by at this step; NaN where that is not one number."""
        return math.nan


@dataclass(frozen=True)
class Progressive(Fade):
    """Nothing to tune: target and fade grow with progress alone. The default for all but single weights.

    With ``p`` the progress at the end of the step, the target grows as in Zhu and Gupta,
    ``q(p) = T (1 - (1 - t) ** 3)`` with ``t`` the position of ``p`` in the window from 0.1 to 0.75, and
    after the step every targeted weight is multiplied by a factor whose logarithm falls exponentially,

        ``f(p) = exp(-lam(p) / steps)``,  ``lam(p) = 10 (steps ln(1000) / 10) ** (p / 0.75)``,

    and is zero from 0.75 on. At the start a targeted weight halves in 7 % of the training, slowly enough
    to recover when it is needed; at 0.75 it loses a factor of 1000 in one step. In the last quarter the
    network trains as sparse as it will be, although weights may still change places. So removal changes
    nothing at all, for every optimizer, learning rate, decay and number of steps.

    >>> fade = Progressive()
    >>> [round(fade.target(p, 1000), 3) for p in (0.0, 0.25, 0.5, 0.75)]
    [0.0, 0.548, 0.944, 1.0]
    >>> [round(fade.factor(p, 1000, {}), 3) for p in (0.0, 0.25, 0.5, 0.7, 0.75)]
    [0.99, 0.915, 0.455, 0.011, 0.0]
    """

    def target(self, progress: float, steps: int) -> float:
        return GROWTH(progress + 1 / steps)

    def dose(self, progress: float, steps: int, group: Mapping[str, Any]) -> float:
        position = (progress + 1 / steps) / _WINDOW[1]
        if position >= 1:
            return math.inf
        first = _FIRST_RATE / steps
        last = max(math.log(1000), first)
        return first * (last / first) ** position

    def shrink(self, weight: Tensor, dose: float) -> Tensor:
        return weight * self.multiplier(dose)

    def multiplier(self, dose: float) -> float:
        return math.exp(-dose)

    def factor(self, progress: float, steps: int, group: Mapping[str, Any]) -> float:
        return math.exp(-self.dose(progress, steps, group))


_WINDOW = (0.1, 0.75)  # of progress: the target grows in it, and the factor is zero after it
GROWTH = cubic(1.0, window=_WINDOW)
_LATENT_GROWTH = smooth(1.0, window=(0.1, 0.5))
_FIRST_RATE = 10.0  # at the start a targeted weight falls by exp(-10) over the length of a training


@dataclass(frozen=True)
class Latent(Fade):
    """Latent weights: the optimizer steps dense weights ``u``, and the network runs on sparse ones.

    After each step, with ``T`` the largest magnitude among the targeted weights,

        ``w = u sqrt(1 - (T / u) ** 4)``  above ``T``, and ``w = 0``  below it.

    Gradients, taken at ``w``, reach all latents, so that a weight that was zero can come back without a jump;
    at ``T`` the map is continuous, and a little above it ``w`` is nearly ``u``. (A square root, unlike other
    powers, is the same to the last bit however the weights are shared out among processes; and it is not so
    steep at ``T`` that a weight there jumps about.) The target grows in the window from 0.1 to 0.5 of the
    training, by ratios: to a final sparsity of ``S``,

        ``s(p) = 1 - (1 - S) ** (t ** 2 (3 - 2 t))``, with ``t`` the position of ``p`` in the window,

    so that the last weights, each of which matters, go as gently as the first; from then on the network is as
    sparse as it will be. Targeted latents move a
    part of what the optimizer would move them, which falls from a quarter of the training on: at full pace, a
    constant learning rate makes them cross ``T`` so often that the network cannot follow. At 0.75 they stand
    still, and the set of weights that are left is settled: in the last quarter the optimizer steps the sparse
    weights themselves, and there are no latents any more.
    In networks with batch-norms, gradients of rows of which no weight is left are scaled down to those of
    others: the norm of a channel that does not vary makes them hundreds of times larger.
    Between steps the parameters hold ``w``: what is evaluated or saved is what it would be after removal,
    which therefore changes nothing. Where an exception or Ctrl-C ends a step, they do so again as soon as the
    network runs, gives or loads a state dict, or the pruner is asked; until then, whoever reads the
    parameters themselves (``copy.deepcopy(model)``) finds latents. So does another thread during a step.

    It takes the memory of one more copy of the prunable weights, which is part of the pruner's state.

    >>> fade = Latent()
    >>> [round(fade.targeted(0.99, fade.target(p, 1000)), 3) for p in (0.0, 0.2, 0.3, 0.4, 0.5)]
    [0.0, 0.519, 0.902, 0.98, 0.99]
    >>> fade.sparse(torch.tensor([1.0, -2.0, 3.0]), 2.0)
    tensor([0.0000, -0.0000, 2.6874])

    References: Lin et al., "Dynamic Model Pruning with Feedback", ICLR 2020; Vanderschueren and
    De Vleeschouwer, "Are Straight-Through Gradients and Soft-Thresholding All You Need for Sparse Training?",
    WACV 2023; Glentis Georgoulakis et al., "Feather", BMVC 2023.
    """

    latent: ClassVar[bool] = True  # pyright: ignore[reportIncompatibleVariableOverride]

    def target(self, progress: float, steps: int) -> float:
        return _LATENT_GROWTH(progress + 1 / steps)

    def targeted(self, sparsity: float, share: float) -> float:
        return 1 - (1 - sparsity) ** share if share < 1 else sparsity  # exactly, in the end

    def dose(self, progress: float, steps: int, group: Mapping[str, Any]) -> float:
        return math.inf

    def factor(self, progress: float, steps: int, group: Mapping[str, Any]) -> float:
        return 0.0

    def pace(self, progress: float) -> float:
        """How far a targeted latent moves at this step, over how far the optimizer would move it."""
        return min(max((_WINDOW[1] - progress) / 0.5, 0.0), 1.0)

    def settles(self, progress: float, steps: int) -> bool:
        """Whether the set that is targeted at this step stays so."""
        return progress + 1 / steps >= _WINDOW[1]

    @exact
    def sparse(self, latent: Tensor, threshold: float) -> Tensor:
        """What the network runs on, for latents under a threshold."""
        if not isinstance(threshold, Tensor) and not threshold:  # in compiled code it is a tensor, above zero
            return latent.clone()
        wide = latent if latent.dtype.itemsize >= 4 else latent.float()
        number = torch.as_tensor(threshold, dtype=wide.dtype, device=wide.device)
        ratio = number / wide  # in ratios no fourth power leaves the range of floats
        left = (1 - ratio.square_().square_()).clamp_min_(0)
        return root_(left).mul_(wide).to(latent.dtype)


_Mu = Annotated[
    float,
    Only(
        lambda mu: 0 < mu < math.inf,
        "the paper's mu, a positive number (leave it out to take that of each parameter group)",
    ),
]


@checked
@dataclass(frozen=True)
class Decay(Fade):
    """The paper's selective weight decay (Algorithm 1), on a full target from the first step.

    The loss gains ``a(p) mu / 2 * sum(w*^2)``, with ``w*`` the targeted weights.

    - ``mode="gradient"``, as published: ``a mu w`` joins the gradient before the step. It goes
      through whatever the optimizer does with gradients, momentum and Adam's moments included, and
      joins after the user's clipping. Under SGD it diverges once ``lr a mu`` nears 2.
    - ``mode="implicit"``: after the step, ``w <- w / (1 + lr a mu)``, the step that the penalty takes
      when it is evaluated at its end point (a proximal step). It cannot diverge, whatever the strength.

    Args:
        strength: the paper's ``a``: a number, or a schedule such as
            ``schedules.exponential(a_min, a_max)`` (Equation 3).
        weight_decay: the paper's ``mu``; by default the weight decay of the parameter's own group.
        mode: ``"gradient"`` or ``"implicit"``.
        penalty: ``"l2"``, ``"l1"`` (``sum |w|``) or ``"smooth_l1"`` (``w^2 / 2`` below 1, ``|w| - 1/2``
            above), each with its gradient and its proximal step.
        selective: False decays all prunable weights alike, the paper's ablation.

    >>> fade = Decay(100.0, weight_decay=0.01, mode="implicit")
    >>> fade.factor(0.0, 1000, {"lr": 1.0})
    0.5

    Reference: Tessier et al., "Rethinking Weight Decay for Efficient Neural Network Pruning",
    J. Imaging 2022.
    """

    strength: float | Schedule
    _: KW_ONLY
    weight_decay: _Mu | None = None
    mode: Literal["gradient", "implicit"] = "gradient"
    penalty: Literal["l2", "l1", "smooth_l1"] = "l2"
    selective: bool = True  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self):
        for progress in (0.0, 0.25, 0.5, 0.75, 1.0):
            try:
                _finite("strength", as_schedule(self.strength)(progress))
            except Exception as error:
                raise ValueError(
                    f"strength is a number >= 0, or a schedule of such numbers; got {shown(self.strength)}: "
                    f"{error}"
                ) from error

    @property
    def on_gradient(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.mode == "gradient"

    def check(self, group: Mapping[str, Any], label: str) -> None:
        if self.mode == "implicit" and group.get("lr") is None:
            raise ValueError(
                f"{label} has no learning rate, and Decay(mode='implicit') multiplies by it: take "
                "mode='gradient', or fadeout.Progressive(), which needs none"
            )
        if not self._mu(group) > 0:
            raise ValueError(
                f"{label} has weight_decay={group.get('weight_decay')!r}, and Decay multiplies it: "
                "nothing would fade. Set weight_decay in the optimizer, or pass "
                "fadeout.Decay(..., weight_decay=mu)"
            )

    def dose(self, progress: float, steps: int, group: Mapping[str, Any]) -> float:
        strength = _finite("strength", as_schedule(self.strength)(progress)) * self._mu(group)
        return strength if self.on_gradient else strength * learning_rate(group)

    def add(self, dose: float, more: float) -> float:
        return dose + more + (dose * more if self.penalty == "l2" else 0.0)

    def shrink(self, weight: Tensor, dose: float) -> Tensor:
        return _PENALTIES[self.penalty].proximal(weight, dose)

    def multiplier(self, dose: float) -> float | None:
        return 1 / (1 + dose) if self.penalty == "l2" else None

    def gradient(self, weight: Tensor, dose: float) -> Tensor:
        return _PENALTIES[self.penalty].gradient(weight) * dose

    def loss(self, weight: Tensor, dose: float) -> Tensor:
        return _PENALTIES[self.penalty].value(weight) * dose

    def factor(self, progress: float, steps: int, group: Mapping[str, Any]) -> float:
        if self.penalty != "l2":
            return math.nan
        dose = self.dose(progress, steps, group)
        return 1 - dose * learning_rate(group) if self.on_gradient else 1 / (1 + dose)

    def _mu(self, group: Mapping[str, Any]) -> float:
        return float(group.get("weight_decay", 0.0)) if self.weight_decay is None else self.weight_decay


def learning_rate(group: Mapping[str, Any]) -> float:
    """That of a parameter group; NaN where the optimizer has its own way, as Adafactor does.

    >>> learning_rate({"lr": 0.1}), learning_rate({"lr": None})
    (0.1, nan)
    """
    return math.nan if group.get("lr") is None else float(group["lr"])


class _Penalty(NamedTuple):
    value: Callable[[Tensor], Tensor]
    gradient: Callable[[Tensor], Tensor]
    proximal: Callable[[Tensor, float], Tensor]
    """``argmin_x dose * value(x) + (x - w)^2 / 2``"""


def _l1_proximal(weight: Tensor, dose: float) -> Tensor:
    return weight.sign() * (weight.abs() - dose).clamp_min(0)


def _smooth_l1_proximal(weight: Tensor, dose: float) -> Tensor:
    inside = weight.abs() <= 1 + dose
    return torch.where(inside, weight * (1 / (1 + dose)), weight - dose * weight.sign())


_PENALTIES = {
    "l2": _Penalty(
        value=lambda w: w.square().sum() / 2,
        gradient=lambda w: w,
        proximal=lambda w, dose: w * (1 / (1 + dose)),
    ),
    "l1": _Penalty(
        value=lambda w: w.abs().sum(),
        gradient=torch.sign,
        proximal=_l1_proximal,
    ),
    "smooth_l1": _Penalty(
        value=lambda w: F.smooth_l1_loss(w, torch.zeros_like(w), reduction="sum"),
        gradient=lambda w: w.clamp(-1, 1),
        proximal=_smooth_l1_proximal,
    ),
}


def _finite(name: str, given: Any) -> float:
    value: float = fitted(name, given, float)  # schedules may compute with numbers of numpy or torch
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} is a number >= 0, or a schedule of such numbers; got {value!r}")
    return value
