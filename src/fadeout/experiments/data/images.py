"""Batches of pictures: normalisation and augmentation, as tensor operations."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor


def normalise(mean: tuple[float, ...], deviation: tuple[float, ...]) -> Callable[[Tensor], Tensor]:
    """What makes of bytes (N, C, H, W) floats with about mean 0 and deviation 1.

    Args:
        mean: of each channel, where 0 is black and 1 is white.
        deviation: of each channel.

    >>> normalise((0.5,), (0.25,))(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)).flatten()
    tensor([-2.,  2.])
    """
    shift, scale = (255 * torch.tensor(values).view(1, -1, 1, 1) for values in (mean, deviation))

    def prepare(x: Tensor) -> Tensor:
        return x.float().sub_(shift.to(x.device)).div_(scale.to(x.device))

    return prepare


def crop_and_flip(x: Tensor, generator: Generator, padding: int = 4) -> Tensor:
    """Move each picture by up to ``padding`` pixels, with black where it has been, and mirror every second.

    Args:
        x: pictures (N, C, H, W), as bytes.
        generator: of the moves.
        padding: in pixels, on each side.

    >>> crop_and_flip(torch.ones(2, 3, 32, 32, dtype=torch.uint8), Generator().manual_seed(0)).shape
    torch.Size([2, 3, 32, 32])
    """
    count, _, height, width = x.shape
    top, left = torch.randint(2 * padding + 1, (2, count), generator=generator)
    mirrored = torch.rand(count, generator=generator) < 0.5
    # all the crops of a padded picture as one view, from which each takes its own
    crops = F.pad(x, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    x = crops[torch.arange(count), :, top, left]
    return torch.where(mirrored.view(-1, 1, 1, 1), x.flip(3), x)
