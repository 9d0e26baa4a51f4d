"""Images in folders: decoding, crops, threads, broken files."""

import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from fadeout._checks import MissingExtraError
from fadeout.experiments.data import image_folder, imagenet
from fadeout.experiments.data.images import read_crop


def image(path, mode="RGB", size=(40, 30), colour=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = {"RGB": (200, 100, 50), "L": 90, "CMYK": (0, 255, 255, 0)}[mode] if colour is None else colour
    Image.new(mode, size, colour).save(path, "JPEG", quality=95)
    return path


@pytest.fixture
def directory(tmp_path):
    """Three classes; images of all kinds; each has a shade of its own."""
    for label, wnid in enumerate(("n02", "n01", "n03")):
        for number in range(8):
            shade = (80 * label + 10 * number,) * 3
            size = (30 + 5 * number, 60 - 5 * number)
            image(tmp_path / "imagenet" / "train" / wnid / f"{wnid}_{number}.JPEG", colour=shade, size=size)
        image(tmp_path / "imagenet" / "val" / wnid / "one.JPEG", mode=("RGB", "L", "CMYK")[label])
    (tmp_path / "imagenet" / "train" / "n01" / "notes.txt").write_text("no image")
    return tmp_path


def test_labels_are_the_sorted_folders(directory):
    data = imagenet(directory, size=16)
    assert data.classes == ["n01", "n02", "n03"]
    assert data.num_classes == 3
    assert data.train_y.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert data.test_y.tolist() == [0, 1, 2]
    for x, y in ((data.train_x, data.train_y), (data.test_x, data.test_y)):
        assert all(data.classes[label] in data.files[n] for n, label in zip(x, y, strict=True))
    assert imagenet(directory).size == 224


def test_batches_are_normalised_and_fit_their_labels(directory):
    data = imagenet(directory, size=16)
    assert data.steps(5) == 4
    seen = []
    for x, y in data.batches(5, epoch=0, seed=0):
        assert x.shape == (5, 3, 16, 16)
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        shades = (x.mean((2, 3)) * std + mean)[:, 0] * 255
        # the shades of the three folders as they are written: n02, n01, n03
        assert torch.equal((shades + 5).div(80).floor().long(), torch.tensor([1, 0, 2])[y])
        seen += shades.round().tolist()
    assert len(seen) == 20
    assert len(set(seen)) == 20  # every image at most once


def test_a_resumed_epoch_sees_the_same_batches(directory):
    draw = np.random.default_rng(0)
    for file in (directory / "imagenet" / "train").rglob("*.JPEG"):
        Image.fromarray(draw.integers(0, 256, (50, 50, 3), dtype=np.uint8)).save(file)
    data = imagenet(directory, size=16)
    whole = list(data.batches(4, epoch=1, seed=5))
    rest = list(data.batches(4, epoch=1, seed=5, first=4))
    for (x, y), (same_x, same_y) in zip(whole[4:], rest, strict=True):
        assert torch.equal(x, same_x)
        assert torch.equal(y, same_y)
    other = list(data.batches(4, epoch=2, seed=5))
    assert not torch.equal(whole[0][0], other[0][0])


def test_a_process_decodes_its_share_alone(directory, monkeypatch):
    data, seen = imagenet(directory, size=8), []
    monkeypatch.setattr(
        image_folder,
        "read_crop",
        lambda file, *rest: seen.append(file) or read_crop(file, *rest),
    )
    whole = list(data.batches(3, epoch=0, seed=0))
    assert len(seen) == 24
    for rank in range(4):  # the last has nothing to take of a batch of three
        part = list(replace(data, part=(rank, 4)).batches(3, epoch=0, seed=0))
        for (x, y), (its_x, its_y) in zip(whole, part, strict=True):
            assert torch.equal(x[rank::4], its_x[rank::4])
            assert torch.equal(y, its_y)
    assert sorted(seen[24:]) == sorted(seen[:24])


def test_grey_and_cmyk_images_become_rgb(directory):
    data = imagenet(directory, size=16)
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


def test_a_broken_image_is_named(directory):
    path = directory / "imagenet" / "train" / "n02" / "n02_3.JPEG"
    whole = path.read_bytes()
    for content in (b"", b"no image", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{path} is no image that can be read"):
            list(imagenet(directory, size=16).batches(8, epoch=0, seed=0))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fadeout-images")]


def test_leaving_early_ends_the_threads(directory):
    data = imagenet(directory, size=16)
    for batches in (data.batches(2, epoch=0, seed=0), data.tests(1)):
        next(batches)
        batches.close()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("fadeout-images")]


def test_the_held_out_part_has_the_classes_in_proportion(directory):
    data = imagenet(directory, size=16)
    part = data.validation(0.25)
    assert part.test_y.tolist() == [0, 0, 1, 1, 2, 2]
    assert part.train_y.bincount().tolist() == [6, 6, 6]
    assert sorted(part.train_x.tolist() + part.test_x.tolist()) == data.train_x.tolist()
    for n, label in zip(part.test_x, part.test_y, strict=True):
        assert part.classes[label] in part.files[n]
    assert sum(len(y) for _, y in part.tests(4)) == 6


def test_wrong_layouts_are_explained(directory, tmp_path):
    image(directory / "imagenet" / "val" / "n09" / "one.JPEG")
    with pytest.raises(ValueError, match=r"val has classes that .*train lacks: n09"):
        imagenet(directory)
    flat = tmp_path / "flat"
    image(flat / "imagenet" / "train" / "n01" / "one.JPEG")
    image(flat / "imagenet" / "val" / "ILSVRC2012_val_00000001.JPEG")
    with pytest.raises(ValueError, match="val has no folders: sort its images"):
        imagenet(flat)
    (flat / "imagenet" / "val" / "n01").mkdir()
    with pytest.raises(ValueError, match=r"val has no images \(\.jpeg"):
        imagenet(flat)
    with pytest.raises(ValueError, match="images of 0 pixels"):
        imagenet(directory, size=0)


def test_without_pillow_the_extra_is_named(directory, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"PIL is not installed: pip install \"fadeout\[experiments"):
        imagenet(directory, size=16).example  # noqa: B018
