"""Pictures in folders: decoding, crops, threads, broken files."""

import os
import random
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from fadeout._checks import MissingExtraError
from fadeout.experiments.data import folder, imagenet, imagenet_sample, jpeg
from fadeout.experiments.data.jpeg import _random_box, centre_crop, random_crop


def picture(path, mode="RGB", size=(40, 30), colour=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = {"RGB": (200, 100, 50), "L": 90, "CMYK": (0, 255, 255, 0)}[mode] if colour is None else colour
    Image.new(mode, size, colour).save(path, "JPEG", quality=95)
    return path


@pytest.fixture
def place(tmp_path):
    """Three classes; pictures of all kinds; each has a shade of its own."""
    for label, wnid in enumerate(("n02", "n01", "n03")):
        for number in range(8):
            shade = (80 * label + 10 * number,) * 3
            size = (30 + 5 * number, 60 - 5 * number)
            picture(tmp_path / "imagenet" / "train" / wnid / f"{wnid}_{number}.JPEG", colour=shade, size=size)
        picture(tmp_path / "imagenet" / "val" / wnid / "one.JPEG", mode=("RGB", "L", "CMYK")[label])
    (tmp_path / "imagenet" / "train" / "n01" / "notes.txt").write_text("no picture")
    return tmp_path


def test_labels_are_the_sorted_folders(place):
    data = imagenet(place, size=16)
    assert data.classes == ["n01", "n02", "n03"]
    assert data.num_classes == 3
    assert data.train_y.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert data.test_y.tolist() == [0, 1, 2]
    assert all(
        data.classes[label] in file for file, label in zip(data.train_files, data.train_y, strict=True)
    )
    assert imagenet(place).size == 224


def test_batches_are_normalised_and_fit_their_labels(place):
    data = imagenet(place, size=16)
    assert data.steps(5) == 4
    seen = []
    for x, y in data.batches(5, epoch=0, seed=0):
        assert x.shape == (5, 3, 16, 16)
        mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        shades = (x.mean((2, 3)) * deviation + mean)[:, 0] * 255
        # the shades of the three folders as they are written: n02, n01, n03
        assert torch.equal((shades + 5).div(80).floor().long(), torch.tensor([1, 0, 2])[y])
        seen += shades.round().tolist()
    assert len(seen) == 20
    assert len(set(seen)) == 20  # every picture at most once


def test_a_resumed_epoch_sees_the_same_batches(place):
    draw = np.random.default_rng(0)
    for file in (place / "imagenet" / "train").rglob("*.JPEG"):
        Image.fromarray(draw.integers(0, 256, (50, 50, 3), dtype=np.uint8)).save(file)
    data = imagenet(place, size=16)
    whole = list(data.batches(4, epoch=1, seed=5))
    rest = list(data.batches(4, epoch=1, seed=5, first=4))
    for (x, y), (same_x, same_y) in zip(whole[4:], rest, strict=True):
        assert torch.equal(x, same_x)
        assert torch.equal(y, same_y)
    other = list(data.batches(4, epoch=2, seed=5))
    assert not torch.equal(whole[0][0], other[0][0])


def test_a_process_decodes_its_share_alone(place, monkeypatch):
    data, seen = imagenet(place, size=8), []
    monkeypatch.setattr(
        folder, "random_crop", lambda file, *rest: seen.append(file) or random_crop(file, *rest)
    )
    whole = list(data.batches(3, epoch=0, seed=0))
    assert len(seen) == 24
    for rank in range(4):  # the last has nothing to take of a batch of three
        part = list(replace(data, part=(rank, 4)).batches(3, epoch=0, seed=0))
        for (x, y), (its_x, its_y) in zip(whole, part, strict=True):
            assert torch.equal(x[rank::4], its_x[rank::4])
            assert torch.equal(y, its_y)
    assert sorted(seen[24:]) == sorted(seen[:24])


def test_grey_and_cmyk_pictures_become_rgb(place):
    data = imagenet(place, size=16)
    ((x, y),) = data.tests(8)
    assert x.shape == (3, 3, 16, 16)
    assert y.tolist() == [0, 1, 2]
    pixels = x * torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1) + torch.tensor([0.485, 0.456, 0.406]).view(
        3, 1, 1
    )
    colours = (pixels[:, :, 8, 8] * 255).round()
    torch.testing.assert_close(colours[0], torch.tensor([90.0] * 3), atol=3, rtol=0)
    torch.testing.assert_close(colours[1], torch.tensor([200.0, 100, 50]), atol=4, rtol=0)
    assert colours[2, 0] > 200 > 100 > colours[2, 1]  # red, written as no cyan, all magenta and yellow
    assert torch.equal(data.example, x[:1])
    assert [len(y) for _, y in data.tests(2)] == [2, 1]


def test_the_centre_is_cropped_after_resizing_the_shorter_side(tmp_path):
    # 300 by 512: resized to 256 by 436 for a size of 224, whose centre is rows 106 to 329, columns 16 to 239
    pixels = np.zeros((512, 300, 3), np.uint8)
    pixels[:, :, 0], pixels[:, :, 1] = np.arange(512)[:, None] // 2, np.arange(300) // 2
    path = tmp_path / "gradient.png"
    Image.fromarray(pixels).save(path)
    found = centre_crop(str(path), 224).float()
    assert found.shape == (3, 224, 224)
    rows = (torch.arange(106, 330) + 0.5) * 512 / 436 / 2
    columns = (torch.arange(16, 240) + 0.5) * 300 / 256 / 2
    torch.testing.assert_close(found[0, :, 100], rows, atol=1, rtol=0)
    torch.testing.assert_close(found[1, 100], columns, atol=1, rtol=0)
    assert centre_crop(str(path), 32).shape == (3, 32, 32)


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


def test_random_crops_are_mirrored_every_second_time(tmp_path):
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[:] = (np.arange(64) * 4)[:, None]
    Image.fromarray(pixels).save(tmp_path / "gradient.png")
    crops = [random_crop(str(tmp_path / "gradient.png"), 16, random.Random(seed)) for seed in range(200)]
    mirrored = sum(bool(crop[0, 0, 0] > crop[0, 0, -1]) for crop in crops)
    assert 75 < mirrored < 125


def test_a_broken_picture_is_named(place):
    path = place / "imagenet" / "train" / "n02" / "n02_3.JPEG"
    whole = path.read_bytes()
    for content in (b"", b"no picture", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{path} is no picture that can be read"):
            list(imagenet(place, size=16).batches(8, epoch=0, seed=0))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fadeout-pictures")]


@pytest.mark.parametrize("size", [(1, 1_000_000), (1_000_000, 1)])
def test_a_long_thin_picture_is_refused_before_it_is_resized(tmp_path, size):
    path = str(tmp_path / "thin.png")
    Image.new("L", size).save(path)
    width, height = (256 * side for side in size)
    with pytest.raises(ValueError, match=rf"{path} is no .* \({width} by {height} pixels are more than"):
        centre_crop(path, 224)
    assert random_crop(path, 224, random.Random(0)).shape == (3, 224, 224)


def test_the_longest_picture_that_is_resized(tmp_path, monkeypatch):
    path = str(tmp_path / "image.png")
    Image.new("L", (20, 10)).save(path)
    monkeypatch.setattr(jpeg, "MAX_PIXELS", 32 * 16)
    assert centre_crop(path, 14).shape == (3, 14, 14)
    monkeypatch.setattr(jpeg, "MAX_PIXELS", 32 * 16 - 1)
    with pytest.raises(ValueError, match=r"32 by 16 pixels are more than 511"):
        centre_crop(path, 14)


def test_a_large_picture_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    path = str(tmp_path / "image.png")
    Image.new("L", (20, 10)).save(path)
    monkeypatch.setattr(jpeg, "MAX_PIXELS", 199)
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("it was decoded"))
    for crop in (lambda: centre_crop(path, 4), lambda: random_crop(path, 4, random.Random(0))):
        with pytest.raises(ValueError, match=rf"{path} is no .* \(20 by 10 pixels are more than 199\)"):
            crop()


@pytest.mark.parametrize("kind", ["BMP", "EPS", "GIF", "PDF", "PPM", "TIFF", "WEBP"])
def test_other_formats_are_refused_whatever_the_name(tmp_path, kind, monkeypatch):
    monkeypatch.setattr("subprocess.check_call", lambda *_, **__: pytest.fail("a program was started"))
    path = tmp_path / "image.jpg"
    Image.new("RGB", (20, 10)).save(path, kind)
    with pytest.raises(ValueError, match=rf"{path} is no picture that can be read"):
        centre_crop(str(path), 4)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_png_may_be_named_as_a_jpeg(tmp_path, kind):
    path = tmp_path / "image.JPEG"
    Image.new("RGB", (20, 10), (9, 9, 9)).save(path, kind)
    assert centre_crop(str(path), 4).unique().tolist() == [9]


def test_leaving_early_ends_the_threads(place):
    data = imagenet(place, size=16)
    for batches in (data.batches(2, epoch=0, seed=0), data.tests(1)):
        next(batches)
        batches.close()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("fadeout-pictures")]


def test_the_held_out_part_has_the_classes_in_proportion(place):
    data = imagenet(place, size=16)
    part = data.validation(0.25)
    assert part.test_y.tolist() == [0, 0, 1, 1, 2, 2]
    assert part.train_y.bincount().tolist() == [6, 6, 6]
    assert sorted(part.train_files + part.test_files) == data.train_files
    assert all(part.classes[label] in file for file, label in zip(part.test_files, part.test_y, strict=True))
    assert sum(len(y) for _, y in part.tests(4)) == 6


def test_wrong_layouts_are_explained(place, tmp_path):
    picture(place / "imagenet" / "val" / "n09" / "one.JPEG")
    with pytest.raises(ValueError, match=r"val has classes that .*train lacks: n09"):
        imagenet(place)
    flat = tmp_path / "flat"
    picture(flat / "imagenet" / "train" / "n01" / "one.JPEG")
    picture(flat / "imagenet" / "val" / "ILSVRC2012_val_00000001.JPEG")
    with pytest.raises(ValueError, match="val has no folders: sort its pictures"):
        imagenet(flat)
    (flat / "imagenet" / "val" / "n01").mkdir()
    with pytest.raises(ValueError, match=r"val has no pictures \(\.jpeg"):
        imagenet(flat)
    with pytest.raises(ValueError, match="pictures of 0 pixels"):
        imagenet(place, size=0)


def test_missing_imagenet_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.delenv("FADEOUT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ValueError, match=rf"needs an account at .*place train, val in {tmp_path}/imagenet"):
        imagenet(tmp_path)


def test_without_pillow_the_extra_is_named(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"PIL is not installed: pip install \"fadeout\[experiments"):
        imagenet(place, size=16).example  # noqa: B018


@pytest.mark.skipif(not os.environ.get("FADEOUT_DATA"), reason="set FADEOUT_DATA to a folder with data")
def test_the_sample_of_imagenet():
    data = imagenet_sample(size=32)
    assert data.num_classes == 20
    x, _ = next(iter(data.batches(64, epoch=0, seed=0)))
    assert x.shape == (64, 3, 32, 32)
    assert abs(x.mean()) < 0.5
    assert 0.7 < x.std() < 1.5
    assert sum(len(y) for _, y in data.tests(100)) == 400  # grey-scale pictures included
