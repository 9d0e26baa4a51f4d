"""Fades with one thing changed, for ablations: what SWD, Progressive and latent weights owe to each part."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from torch import Tensor

from fadeout import criteria
from fadeout.fades import Decay, Latent, Progressive
from fadeout.methods.method import CriterionName, Method, Phase, train
from fadeout.methods.swd import High, Low, Mu, SelectiveWeightDecay, growing_strength
from fadeout.schedules import Schedule, cubic, exponential, smooth


@dataclass(frozen=True)
class Variant(Progressive):
    """Progressive with other constants.

    Attributes:
        begin, end: the window of progress in which the target grows.
        growth: how it does.
        zero: the progress from which on the factor is zero.
        rate: at the start a targeted weight would fall by ``exp(-rate)`` over the length of a training.
    """

    begin: float = 0.1
    end: float = 0.75
    growth: Literal["cubic", "linear", "none"] = "cubic"
    zero: float = 0.75
    rate: float = 10.0

    def schedule(self, sparsity: float) -> float | Schedule:
        """The target; as a schedule, it grows for channels too."""
        if self.growth == "none":
            return lambda progress: sparsity
        if self.growth == "cubic":
            return cubic(sparsity, window=(self.begin, self.end))
        width = self.end - self.begin
        return lambda progress: sparsity * min(max((progress - self.begin) / width, 0.0), 1.0)

    def dose(self, progress: float, steps: int, group: Mapping[str, Any]) -> float:
        position = (progress + 1 / steps) / self.zero if self.zero else 1.0
        if position >= 1:
            return math.inf
        return exponential(self.rate / steps, max(math.log(1000), self.rate / steps))(position)


@dataclass(frozen=True)
class LatentVariant(Latent):
    """Latent weights with other constants.

    Attributes:
        begin, end: the window of progress in which the target grows.
        settled: the progress from which on the set that is left stays; above 1 it never does.
        power, root: of ``u (1 - (T / u) ** power) ** (1 / root)``; an infinite power is a hard threshold, as
            in Lin et al. 2020 and in torchao's ``GlobalMinSparsityConstraint``.
        steady: the pace of targeted latents, where it does not fall.
        growth: how the target does, by ratios or, as in Zhu and Gupta, as a cubic.
    """

    begin: float = 0.1
    end: float = 0.5
    settled: float = 0.75
    power: float = 4
    root: float = 2
    steady: float | None = None
    growth: Literal["ratios", "cubic"] = "ratios"

    def schedule(self, sparsity: float) -> float | Schedule:
        """The target, which the fade itself lets grow."""
        return sparsity

    def target(self, progress: float, steps: int) -> float:
        growth = smooth if self.growth == "ratios" else cubic
        return growth(1.0, window=(self.begin, self.end))(progress + 1 / steps)

    def targeted(self, sparsity: float, share: float) -> float:
        return super().targeted(sparsity, share) if self.growth == "ratios" else sparsity * share

    def pace(self, progress: float) -> float:
        return super().pace(progress) if self.steady is None else self.steady

    def settles(self, progress: float, steps: int) -> bool:
        return progress + 1 / steps >= self.settled

    def sparse(self, latent: Tensor, threshold: float) -> Tensor:
        nothing_goes = not isinstance(threshold, Tensor) and not threshold  # a tensor in compiled code
        if nothing_goes or (self.power, self.root) == (4, 2):
            return super().sparse(latent, threshold)
        return latent * (1 - (threshold / latent).abs() ** self.power).clamp_min_(0) ** (1 / self.root)


VARIANTS: dict[str, Variant | LatentVariant] = {
    "growing target": Variant(),
    "target from 0": Variant(begin=0.0),
    "target from 0.2": Variant(begin=0.2),
    "target until 0.6": Variant(end=0.6),
    "target from 0 until 0.4": Variant(begin=0.0, end=0.4),
    "zero from 0.9": Variant(zero=0.9),
    "first rate 1": Variant(rate=1.0),
    "first rate 100": Variant(rate=100.0),
    "linear target": Variant(growth="linear"),
    "full target": Variant(growth="none"),
    "no fade": Variant(zero=0.0),  # targeted weights are zero at once; unlike in GMP they may come back
    "latents from 0.05": LatentVariant(begin=0.05),
    "latents until 0.35": LatentVariant(end=0.35),
    "latents until 0.75": LatentVariant(end=0.75),
    "latents settle at 0.5": LatentVariant(settled=0.5),
    "latents never settle": LatentVariant(settled=math.inf),
    "latents by squares": LatentVariant(power=2),
    "latents under fourth roots": LatentVariant(root=4),
    "latents at full pace": LatentVariant(steady=1.0),
    "latents at half of the pace": LatentVariant(steady=0.5),
    "latents under a hard threshold": LatentVariant(power=math.inf),
    "latents by a cubic": LatentVariant(growth="cubic"),
}


def variant(
    epochs: int,
    sparsity: float,
    fade: Annotated[str, f"what is changed: {', '.join(VARIANTS)}"] = "growing target",
    criterion: CriterionName = "magnitude",
) -> list[Phase]:
    """Progressive or latent weights with one thing changed, for ablations."""
    if fade not in VARIANTS:
        raise ValueError(f"no fade {fade!r}; there are {', '.join(VARIANTS)}")
    return train(
        SelectiveWeightDecay,
        epochs,
        sparsity=VARIANTS[fade].schedule(sparsity),
        fade=VARIANTS[fade],
        criterion=getattr(criteria, criterion),
    )


VARIANT = Method(
    "variant", variant, label="variant of the fade", colour="#8a6d3b", dark_colour="#c9ab74", marker="*"
)


def growing_decay(
    epochs: int,
    sparsity: float,
    model: str,
    data: str,
    structure: str,
    a_min: Low = None,
    a_max: High = None,
    mu: Mu = None,
) -> list[Phase]:
    """The ablation of the paper's section 4.8: a decay that grows as in SWD, on all weights alike."""
    strength = growing_strength(a_min, a_max, f"{model} on {data}, {structure}")
    fade = Decay(strength, weight_decay=mu, selective=False)
    return train(SelectiveWeightDecay, epochs, sparsity=sparsity, fade=fade)


GROWING_DECAY = Method(
    "growing_decay",
    growing_decay,
    label="growing decay",
    colour="#cd0019",
    dark_colour="#fa857a",
    marker=">",
    order=8,
)
