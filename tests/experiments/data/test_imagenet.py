"""ImageNet: where it is looked for, and the sample of it. How folders are read is in test_image_folder.py."""

import os

import pytest
from PIL import Image

from fadeout.experiments.data import imagenet, imagenet_sample


def test_missing_imagenet_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.delenv("FADEOUT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ValueError, match=rf"needs an account at .*place train, val in {tmp_path}/imagenet"):
        imagenet(tmp_path)


@pytest.mark.skipif(not os.environ.get("FADEOUT_DATA"), reason="set FADEOUT_DATA to a folder with data")
def test_the_sample_of_imagenet():
    data = imagenet_sample(size=32)
    assert data.num_classes == 20
    x, _ = next(iter(data.batches(64, epoch=0, seed=0)))
    assert x.shape == (64, 3, 32, 32)
    assert abs(x.mean()) < 0.5
    assert 0.7 < x.std() < 1.5
    assert sum(len(y) for _, y in data.tests(100)) == 400  # grey-scale images included


def test_the_sample_has_a_folder_of_its_own(tmp_path):
    for part in ("train", "val"):
        file = tmp_path / "imagenet-sample" / part / "n01" / "one.JPEG"
        file.parent.mkdir(parents=True)
        Image.new("RGB", (40, 30)).save(file, "JPEG")
    data = imagenet_sample(tmp_path, size=8)
    assert (data.classes, data.size) == (["n01"], 8)
    assert data.example.shape == (1, 3, 8, 8)
