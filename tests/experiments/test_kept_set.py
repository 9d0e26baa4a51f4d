"""The kept set over a training: packed as bits, and compared with the final one."""

import torch

from fadeout.experiments.kept_set import overlaps, pack


def test_weights_are_bits_one_parameter_after_the_other():
    masks = {
        "a": torch.tensor([[True, False], [False, True]]),
        "b": torch.tensor([[True, True, True, False]]),
    }
    assert pack(masks) == f"{0b10011110:02x}"


def test_a_channel_counts_once():
    masks = {"a": torch.tensor([[True, True], [False, False], [True, True]])}
    assert pack(masks, channels=True) == f"{0b10100000:02x}"


def test_of_a_large_network_every_nth_weight():
    mask = torch.zeros(3 * 65_536, 1, dtype=torch.bool)
    mask[::3] = True
    assert pack({"a": mask}) == "ff" * (65_536 // 8)


def test_overlap_is_the_share_of_the_final_set():
    assert overlaps([(0.25, "0f"), (0.5, "70"), (1.0, "f0")], "f0") == [[0.25, 0.0], [0.5, 0.75], [1.0, 1.0]]
    assert overlaps([(1.0, "00")], "00") == [[1.0, 0.0]]  # where nothing is left
