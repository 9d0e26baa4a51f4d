"""The kept set over a training: how much of the final one is kept already shows when a method decides."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fadeout.torch_bridge.sharding import whole

TIMES = 64
"""At most so often in a run the kept set is noted."""

_SAMPLE = 65_536  # weights, at a fixed stride, stand for all of a larger network


def pack(masks: Mapping[str, Tensor], channels: bool = False) -> str:
    """A kept set as bits, in hexadecimal; where masks are distributed, every process must ask.

    Args:
        channels: a row of a mask stays or goes as a whole, and counts once.

    >>> pack({"weight": torch.tensor([[True, False], [True, True]])})
    'b0'
    """
    rows = [whole(mask).cpu().reshape(len(mask), -1) for mask in masks.values()]
    bits = torch.cat([row[:, 0] if channels else row.flatten() for row in rows])
    return np.packbits(bits[:: -(-len(bits) // _SAMPLE)].numpy()).tobytes().hex()


def overlaps(noted: Sequence[tuple[float, str]], final: str) -> list[list[float]]:
    """What part of the final kept set was kept at each progress.

    Args:
        noted: progress, and the kept set as :func:`pack` gives it.

    >>> overlaps([(0.5, "3c"), (1.0, "f0")], "f0")
    [[0.5, 0.5], [1.0, 1.0]]
    """
    end = int(final, 16)
    return [
        [round(progress, 6), round((int(kept, 16) & end).bit_count() / max(end.bit_count(), 1), 4)]
        for progress, kept in noted
    ]
