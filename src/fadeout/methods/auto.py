"""Fadeout's own fades as methods of an experiment: nothing to tune but the target."""

from functools import partial

from fadeout import criteria
from fadeout.fades import Latent, Progressive
from fadeout.methods.method import CriterionName, Method, Phase, train
from fadeout.methods.swd import SelectiveWeightDecay

_train = partial(train, SelectiveWeightDecay)


def auto(epochs: int, sparsity: float) -> list[Phase]:
    """Selective weight decay with nothing to tune: this library's default."""
    return _train(epochs, sparsity=sparsity)


def progressive(epochs: int, sparsity: float, criterion: CriterionName = "magnitude") -> list[Phase]:
    """Targeted weights are multiplied by a factor that falls to zero; without latent weights."""
    return _train(epochs, sparsity=sparsity, criterion=getattr(criteria, criterion), fade=Progressive())


def latent(epochs: int, sparsity: float, criterion: CriterionName = "magnitude") -> list[Phase]:
    """Latent weights: the optimizer steps dense ones, the network runs on their thresholded form."""
    return _train(epochs, sparsity=sparsity, criterion=getattr(criteria, criterion), fade=Latent())


AUTO = Method("auto", auto, label="fadeout", colour="#0b6bcb", dark_colour="#5aa9f7", marker="o", order=7)
PROGRESSIVE = Method(
    "progressive",
    progressive,
    label="Progressive",
    colour="#7a8cf0",
    dark_colour="#9fb0ff",
    marker="$♪$",
    order=9,
)
LATENT = Method(
    "latent", latent, label="latent weights", colour="#00807d", dark_colour="#3fd0c9", marker="H", order=9
)
