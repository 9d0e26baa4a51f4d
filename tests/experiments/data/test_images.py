"""Normalisation and augmentation of batches of pictures."""

import torch

from fadeout.experiments.data.images import crop_and_flip, normalise


def test_normalise_by_channel():
    x = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1)
    prepared = normalise((0.0, 0.1, 0.5), (1.0, 0.1, 0.25))(x)
    torch.testing.assert_close(prepared.flatten(), torch.tensor([0.0, 1.0, 2.0]))
    assert x.flatten().tolist() == [0, 51, 255]  # the stored pictures stay as they are


def one_by_one(x, generator, padding):
    """The same in a loop over the pictures."""
    count, channels, height, width = x.shape
    top, left = torch.randint(2 * padding + 1, (2, count), generator=generator).tolist()
    mirrored = (torch.rand(count, generator=generator) < 0.5).tolist()
    result = torch.zeros_like(x)
    for n in range(count):
        wide = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=x.dtype)
        wide[:, padding : padding + height, padding : padding + width] = x[n]
        crop = wide[:, top[n] : top[n] + height, left[n] : left[n] + width]
        result[n] = crop.flip(2) if mirrored[n] else crop
    return result


def test_crop_and_flip_equals_the_loop_over_pictures():
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
