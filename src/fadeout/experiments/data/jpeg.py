"""One picture file as a tensor of bytes (3, size, size), cropped and resized."""

import math
import random
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fadeout._checks import extra

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 89_478_485  # where Pillow begins to warn of decompression bombs: about 360 MB
_FORMATS = ("JPEG", "PNG")  # ImageNet has a PNG among its JPEGs; Pillow starts Ghostscript for an EPS
_AREA = 0.08, 1.0  # the share of a picture that a random crop takes
_RATIO = 3 / 4, 4 / 3  # of its width to its height


def random_crop(path: str, size: int, draw: random.Random) -> Tensor:
    """A random part of a picture, of random size and proportions, resized, and mirrored every second time.

    Whatever its name, the file is a JPEG or a PNG of at most ``MAX_PIXELS``.

    Args:
        path: of the picture.
        size: of the result, in pixels.
        draw: what the part is drawn from.
    """
    picture = _open(path)
    pixels = _bytes(_resized(picture, size, size, _random_box(*picture.size, draw)))
    return pixels.flip(2) if draw.random() < 0.5 else pixels


def centre_crop(path: str, size: int) -> Tensor:
    """The centre of a picture whose shorter side is resized to 256, or in proportion if ``size`` is not 224.

    The resized picture may have ``MAX_PIXELS``; a longer and thinner one is refused before it is made.

    Args:
        path: of the picture.
        size: of the result, in pixels.
    """
    picture = _open(path)
    shorter = round(size * 256 / 224)
    width, height = (side * shorter // min(picture.size) for side in picture.size)
    if width * height > MAX_PIXELS:
        raise _too_large(path, width, height)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return _bytes(_resized(picture, width, height).crop((left, top, left + size, top + size)))


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


def _open(path: str) -> "Image":
    """The picture; grey-scale and CMYK become RGB."""
    with extra("experiments"):
        from PIL import Image
    try:
        with Image.open(path, formats=_FORMATS) as picture:
            if math.prod(picture.size) <= MAX_PIXELS:  # so far only the header is read
                return picture.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise _unreadable(path, error) from error
    raise _too_large(path, *picture.size)


def _too_large(path: str, width: int, height: int) -> ValueError:
    return _unreadable(path, f"{width} by {height} pixels are more than {MAX_PIXELS:,}")


def _unreadable(path: str, problem: object) -> ValueError:
    return ValueError(f"{path} is no picture that can be read ({problem}): replace it")


def _resized(
    picture: "Image", width: int, height: int, box: tuple[int, int, int, int] | None = None
) -> "Image":
    from PIL.Image import Resampling

    return picture.resize((width, height), Resampling.BILINEAR, box=box)


def _bytes(picture: "Image") -> Tensor:
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)
