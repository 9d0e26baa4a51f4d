"""Fadeout prunes PyTorch networks while they train."""

from fadeout import _interrupt  # isort: skip  # noqa: F401 - first, as torch takes seconds
from fadeout import criteria, export, integrations, methods, models, schedules
from fadeout.compaction.compact import compact
from fadeout.compaction.sparse_products import sparse
from fadeout.fades import Decay, Fade, Latent, Progressive
from fadeout.masks import Masks
from fadeout.measure import measure
from fadeout.methods.dense import NoPruning
from fadeout.methods.swd import SelectiveWeightDecay
from fadeout.storage.network_file import load, save
from fadeout.structures.base import Structure
from fadeout.structures.blocks import Blocks
from fadeout.structures.channels import Channels
from fadeout.structures.elements import Elements
from fadeout.structures.nm import NM

__version__ = "0.2.0.dev0"

__all__ = [
    "NM",
    "Blocks",
    "Channels",
    "Decay",
    "Elements",
    "Fade",
    "Latent",
    "Masks",
    "NoPruning",
    "Progressive",
    "SelectiveWeightDecay",
    "Structure",
    "compact",
    "criteria",
    "export",
    "integrations",
    "load",
    "measure",
    "methods",
    "models",
    "save",
    "schedules",
    "sparse",
]
