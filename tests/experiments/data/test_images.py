"""Images: crops of files and their limits; normalisation and augmentation of batches."""

import random

import numpy as np
import pytest
import torch
from PIL import Image

from fadeout.experiments.data import images
from fadeout.experiments.data.images import (
    _random_box,
    crop_and_flip,
    normalise,
    read_crop,
)


def test_normalise_by_channel():
    x = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1)
    prepared = normalise((0.0, 0.1, 0.5), (1.0, 0.1, 0.25))(x)
    torch.testing.assert_close(prepared.flatten(), torch.tensor([0.0, 1.0, 2.0]))
    assert x.flatten().tolist() == [0, 51, 255]  # the stored images stay as they are


def one_by_one(x, generator, padding):
    """The same in a loop over the images."""
    count, channels, height, width = x.shape
    top, left = torch.randint(2 * padding + 1, (2, count), generator=generator).tolist()
    flipped = (torch.rand(count, generator=generator) < 0.5).tolist()
    result = torch.zeros_like(x)
    for n in range(count):
        wide = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=x.dtype)
        wide[:, padding : padding + height, padding : padding + width] = x[n]
        crop = wide[:, top[n] : top[n] + height, left[n] : left[n] + width]
        result[n] = crop.flip(2) if flipped[n] else crop
    return result


def test_crop_and_flip_equals_the_loop_over_images():
    x = torch.randint(1, 256, (50, 3, 12, 9), dtype=torch.uint8)
    for padding in (1, 4):
        found = crop_and_flip(x, torch.Generator().manual_seed(3), padding)
        assert found.dtype == torch.uint8
        assert torch.equal(found, one_by_one(x, torch.Generator().manual_seed(3), padding))


def test_every_move_and_both_directions_occur():
    x = torch.zeros(4000, 1, 9, 9, dtype=torch.uint8)
    x[:, :, 4, 4] = 255  # a dot in the middle, which stays inside
    found = crop_and_flip(x, torch.Generator().manual_seed(0))
    assert (found.flatten(1).sum(1) == 255).all()
    counts = (found > 0).sum(0).flatten()
    assert counts.min() > 20  # about 49 at each of the 81 positions
    x[:, :, 4, 4], x[:, :, :, 0] = 0, 255
    found = crop_and_flip(x, torch.Generator().manual_seed(0), padding=0)
    assert 1900 < (found[:, 0, 0, 8] > 0).sum() < 2100  # the left side is on the right


# Files ----------------------------------------------------------------------------------------------------


def test_the_centre_is_cropped_after_resizing_the_shorter_side(tmp_path):
    # 300 by 512: resized to 256 by 436 for a size of 224, whose centre is rows 106 to 329, columns 16 to 239
    pixels = np.zeros((512, 300, 3), np.uint8)
    pixels[:, :, 0], pixels[:, :, 1] = np.arange(512)[:, None] // 2, np.arange(300) // 2
    path = tmp_path / "gradient.png"
    Image.fromarray(pixels).save(path)
    found = read_crop(str(path), 224).float()
    assert found.shape == (3, 224, 224)
    rows = (torch.arange(106, 330) + 0.5) * 512 / 436 / 2
    columns = (torch.arange(16, 240) + 0.5) * 300 / 256 / 2
    torch.testing.assert_close(found[0, :, 100], rows, atol=1, rtol=0)
    torch.testing.assert_close(found[1, 100], columns, atol=1, rtol=0)
    assert read_crop(str(path), 32).shape == (3, 32, 32)


def test_random_boxes_lie_inside_and_have_the_right_sizes():
    draw, areas, ratios = random.Random(0), [], []
    for _ in range(2000):
        left, top, right, bottom = _random_box(500, 400, draw)
        assert 0 <= left < right <= 500
        assert 0 <= top < bottom <= 400
        areas.append((right - left) * (bottom - top) / 200_000)
        ratios.append((right - left) / (bottom - top))
    assert 0.078 < min(areas) < 0.1
    assert 0.9 < max(areas) <= 1
    assert 0.745 < min(ratios) < 0.77
    assert 1.3 < max(ratios) < 1.34


@pytest.mark.parametrize(
    ("size", "box"),
    [((1000, 10), (493, 0, 506, 10)), ((10, 1000), (0, 493, 10, 506)), ((1, 1), (0, 0, 1, 1))],
)
def test_the_centre_is_taken_where_no_random_box_fits(size, box):
    class Largest(random.Random):
        def uniform(self, a, b):
            return b

    assert _random_box(*size, Largest()) == box


def test_random_crops_are_flipped_every_second_time(tmp_path):
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[:] = (np.arange(64) * 4)[:, None]
    Image.fromarray(pixels).save(tmp_path / "gradient.png")
    crops = [read_crop(str(tmp_path / "gradient.png"), 16, seed) for seed in range(200)]
    flipped = sum(bool(crop[0, 0, 0] > crop[0, 0, -1]) for crop in crops)
    assert 75 < flipped < 125


@pytest.mark.parametrize("size", [(1, 1_000_000), (1_000_000, 1)])
def test_a_long_thin_image_is_refused_before_it_is_resized(tmp_path, size):
    path = str(tmp_path / "thin.png")
    Image.new("L", size).save(path)
    width, height = (256 * side for side in size)
    with pytest.raises(ValueError, match=rf"{path} is no .* \({width} by {height} pixels are more than"):
        read_crop(path, 224)
    assert read_crop(path, 224, 0).shape == (3, 224, 224)


def test_the_longest_image_that_is_resized(tmp_path, monkeypatch):
    path = str(tmp_path / "image.png")
    Image.new("L", (20, 10)).save(path)
    monkeypatch.setattr(images, "MAX_PIXELS", 32 * 16)
    assert read_crop(path, 14).shape == (3, 14, 14)
    monkeypatch.setattr(images, "MAX_PIXELS", 32 * 16 - 1)
    with pytest.raises(ValueError, match=r"32 by 16 pixels are more than 511"):
        read_crop(path, 14)


def test_a_large_image_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    path = str(tmp_path / "image.png")
    Image.new("L", (20, 10)).save(path)
    monkeypatch.setattr(images, "MAX_PIXELS", 199)
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("it was decoded"))
    for crop in (lambda: read_crop(path, 4), lambda: read_crop(path, 4, 0)):
        with pytest.raises(ValueError, match=rf"{path} is no .* \(20 by 10 pixels are more than 199\)"):
            crop()


@pytest.mark.parametrize("kind", ["BMP", "EPS", "GIF", "PDF", "PPM", "TIFF", "WEBP"])
def test_other_formats_are_refused_whatever_the_name(tmp_path, kind, monkeypatch):
    monkeypatch.setattr("subprocess.check_call", lambda *_, **__: pytest.fail("a program was started"))
    path = tmp_path / "image.jpg"
    Image.new("RGB", (20, 10)).save(path, kind)
    with pytest.raises(ValueError, match=rf"{path} is no image that can be read"):
        read_crop(str(path), 4)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_png_may_be_named_as_a_jpeg(tmp_path, kind):
    path = tmp_path / "image.JPEG"
    Image.new("RGB", (20, 10), (9, 9, 9)).save(path, kind)
    assert read_crop(str(path), 4).unique().tolist() == [9]
