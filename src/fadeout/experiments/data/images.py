"""Images: one file as a tensor of bytes, cropped and resized; batches of bytes, normalised and augmented."""

import math
import random
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fadeout._checks import extra

MAX_PIXELS = 89_478_485  # where Pillow begins to warn of decompression bombs: about 360 MB
_FORMATS = ("JPEG", "PNG")  # ImageNet has a PNG among its JPEGs; Pillow starts Ghostscript for an EPS
_AREA = 0.08, 1.0  # the share of an image that a random crop takes
_RATIO = 3 / 4, 4 / 3  # of its width to its height


def normalise(mean: tuple[float, ...], std: tuple[float, ...]) -> Callable[[Tensor], Tensor]:
    """What makes of bytes (N, C, H, W) floats with about mean 0 and standard deviation 1.

    Args:
        mean: of each channel, where 0 is black and 1 is white.

    >>> normalise((0.5,), (0.25,))(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)).flatten()
    tensor([-2.,  2.])
    """
    shift, scale = (255 * torch.tensor(values).view(1, -1, 1, 1) for values in (mean, std))

    def prepare(x: Tensor) -> Tensor:
        return x.float().sub_(shift.to(x.device)).div_(scale.to(x.device))

    return prepare


def crop_and_flip(x: Tensor, generator: Generator, padding: int = 4) -> Tensor:
    """Random crops of images (N, C, H, W) padded by ``padding`` black pixels, every second one flipped.

    >>> crop_and_flip(torch.ones(2, 3, 32, 32, dtype=torch.uint8), Generator().manual_seed(0)).shape
    torch.Size([2, 3, 32, 32])
    """
    count, _, height, width = x.shape
    top, left = torch.randint(2 * padding + 1, (2, count), generator=generator)
    flipped = torch.rand(count, generator=generator) < 0.5
    # all the crops of a padded image as one view, from which each takes its own
    crops = F.pad(x, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    x = crops[torch.arange(count), :, top, left]
    return torch.where(flipped.view(-1, 1, 1, 1), x.flip(3), x)


def read_crop(path: str, size: int, seed: int | None = None) -> Tensor:
    """A part of an image as bytes (3, size, size), also if it is grey-scale or CMYK.

    For training, a random part of random size and proportions, resized, and flipped every second time. For
    the test, the centre of the image, whose shorter side is resized to 256, or in proportion if ``size`` is
    not 224.

    Args:
        path: of the image: a JPEG or a PNG, whatever its name, of at most ``MAX_PIXELS``, also when resized.
        seed: of a random part; None takes the centre.
    """
    with extra("experiments"):
        from PIL import Image
    draw = None if seed is None else random.Random(seed)
    try:
        with Image.open(path, formats=_FORMATS) as file:  # so far the header alone
            shorter = min(file.size) if draw else round(size * 256 / 224)
            width, height = (side * shorter // min(file.size) for side in file.size)
            for wide, high in (file.size, (width, height)):
                if wide * high > MAX_PIXELS:
                    raise ValueError(f"{wide} by {high} pixels are more than {MAX_PIXELS:,}")
            image = file.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} is no image that can be read ({error}): replace it") from error
    if draw:
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=_random_box(width, height, draw))
    else:
        left, top = round((width - size) / 2), round((height - size) / 2)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
        image = image.crop((left, top, left + size, top + size))
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    return pixels.flip(2) if draw and draw.random() < 0.5 else pixels


def _random_box(width: int, height: int, draw: random.Random) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a part; after ten that do not fit, the largest centre that is allowed.

    >>> _random_box(100, 100, random.Random(0))
    (0, 0, 100, 86)
    """
    for _ in range(10):
        area = width * height * draw.uniform(*_AREA)
        ratio = math.exp(draw.uniform(*map(math.log, _RATIO)))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, top = draw.randint(0, width - wide), draw.randint(0, height - high)
            return left, top, left + wide, top + high
    wide, high = min(width, round(height * _RATIO[1])), min(height, round(width / _RATIO[0]))
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high
