"""Pruning methods, each in a file that reads beside its paper."""

from fadeout.methods.dense import NoPruning
from fadeout.methods.gmp import GradualMagnitudePruning
from fadeout.methods.greg import GrowingRegularization
from fadeout.methods.hesso import HESSO
from fadeout.methods.magnitude import iterative, one_shot
from fadeout.methods.swd import SelectiveWeightDecay

__all__ = [
    "HESSO",
    "GradualMagnitudePruning",
    "GrowingRegularization",
    "NoPruning",
    "SelectiveWeightDecay",
    "iterative",
    "one_shot",
]
