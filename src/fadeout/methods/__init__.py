"""Pruning methods, each in a file that reads beside its paper."""

from fadeout.methods.acdc import ACDC
from fadeout.methods.dense import NoPruning
from fadeout.methods.gmp import GradualMagnitudePruning
from fadeout.methods.greg import GrowingRegularization
from fadeout.methods.hesso import HESSO
from fadeout.methods.magnitude import iterative, one_shot
from fadeout.methods.rigl import RigL
from fadeout.methods.st3 import ST3
from fadeout.methods.swd import SelectiveWeightDecay

__all__ = [
    "ACDC",
    "HESSO",
    "ST3",
    "GradualMagnitudePruning",
    "GrowingRegularization",
    "NoPruning",
    "RigL",
    "SelectiveWeightDecay",
    "iterative",
    "one_shot",
]
