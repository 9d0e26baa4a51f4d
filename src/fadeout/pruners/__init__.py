"""What the pruners of all methods share, and a method of one's own begins with."""

from fadeout.pruners.channel_pruner import ChannelPruner
from fadeout.pruners.mask_pruner import MaskPruner
from fadeout.pruners.pruner import Pruner
from fadeout.pruners.step_pruner import StepPruner

__all__ = ["ChannelPruner", "MaskPruner", "Pruner", "StepPruner"]
