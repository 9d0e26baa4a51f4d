"""Every method as the phases of training that it consists of, each beside its paper.

A recipe is a function; its arguments are fields of :class:`fadeout.experiments.Run`, its name is the method's
name on the command line. To add a method, add a function.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fadeout.fades import Decay
from fadeout.methods.gmp import GradualMagnitudePruning
from fadeout.methods.slimming import Slimming
from fadeout.methods.swd import SelectiveWeightDecay
from fadeout.schedules import exponential


@dataclass(frozen=True)
class Phase:
    """A stretch of training.

    Attributes:
        name: what it is called in the metrics.
        epochs: its length; a phase of none is a removal alone.
        remove: the fraction that is removed before it begins, and held at zero from then on.
        pruner: builds the pruner that acts during it, from (model, optimizer, steps=, structure=); the
            pruner's own removal ends the phase.
        restart: a new optimizer and the learning rates of a whole training; otherwise it goes on at the last
            learning rate, with the optimizer's state.
    """

    name: str
    epochs: int
    remove: float | None = None
    pruner: Callable[..., Any] | None = None
    restart: bool = False


def dense(epochs: int) -> list[Phase]:
    """No pruning."""
    return [Phase("train", epochs, restart=True)]


def one_shot(epochs: int, sparsity: float) -> list[Phase]:
    """Train, then set the weights of least magnitude to zero; no fine-tuning. The paper's "weight decay"."""
    return [*dense(epochs), Phase("pruned", 0, remove=sparsity)]


def han(epochs: int, sparsity: float, rounds: int, fine_tune: int, last_fine_tune: int) -> list[Phase]:
    """Han et al. 2015: train; then, five times, remove a part and fine-tune, the last time for longer."""
    lengths = [fine_tune] * (rounds - 1) + [last_fine_tune]
    return dense(epochs) + [
        Phase(f"fine-tune {number}", length, remove=sparsity * number / rounds)
        for number, length in enumerate(lengths, 1)
    ]


def liu(epochs: int, sparsity: float, last_fine_tune: int, smooth_l1: float, preset: str) -> list[Phase]:
    """Liu et al. 2017: train with a smooth-L1 penalty on the scales, remove once, fine-tune without it."""
    return [
        Phase("train", epochs, pruner=_slimming(smooth_l1, preset), restart=True),
        Phase("fine-tune", last_fine_tune, remove=sparsity),
    ]


def rewinding(epochs: int, sparsity: float, structure: str, smooth_l1: float, preset: str) -> list[Phase]:
    """Renda et al. 2020: train, remove once, and train again as long, with the same learning rates.

    Structured, the first training has the penalty of Liu et al.
    """
    pruner = _slimming(smooth_l1, preset) if structure == "channels" else None
    return [
        Phase("train", epochs, pruner=pruner, restart=True),
        Phase("train again", epochs, remove=sparsity, restart=True),
    ]


def gmp(epochs: int, sparsity: float) -> list[Phase]:
    """Zhu and Gupta 2017: gradual magnitude pruning while it trains."""
    return [Phase("train", epochs, pruner=partial(GradualMagnitudePruning, sparsity=sparsity), restart=True)]


def swd(epochs: int, sparsity: float, a_min: float, a_max: float, mu: float | None) -> list[Phase]:
    """Tessier et al. 2022: selective weight decay as published, with ``a`` from ``a_min`` to ``a_max``."""
    return [_selective(epochs, sparsity, Decay(exponential(a_min, a_max), weight_decay=mu))]


def auto(epochs: int, sparsity: float) -> list[Phase]:
    """Selective weight decay with nothing to tune: this library's default."""
    return [Phase("train", epochs, pruner=partial(SelectiveWeightDecay, sparsity=sparsity), restart=True)]


def growing_decay(epochs: int, sparsity: float, a_min: float, a_max: float, mu: float | None) -> list[Phase]:
    """The ablation of section 4.8: a decay that grows as in SWD, on all weights alike."""
    fade = Decay(exponential(a_min, a_max), weight_decay=mu, selective=False)
    return [_selective(epochs, sparsity, fade)]


METHODS: dict[str, Callable[..., list[Phase]]] = {
    recipe.__name__: recipe
    for recipe in (dense, one_shot, han, liu, rewinding, gmp, swd, auto, growing_decay)
}


def _selective(epochs: int, sparsity: float, fade: Decay) -> Phase:
    pruner = partial(SelectiveWeightDecay, sparsity=sparsity, fade=fade)
    return Phase("train", epochs, pruner=pruner, restart=True)


def _slimming(strength: float, preset: str) -> Callable[..., Any]:
    return partial(Slimming, strength=strength, authors=preset == "authors")
