"""Channels: structured pruning, its target counted in what is really gone."""

from fadeout.structures.channels.bound import BoundChannels
from fadeout.structures.channels.structure import Channels

__all__ = ["BoundChannels", "Channels"]
