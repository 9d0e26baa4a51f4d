"""The table of what a layer takes at each width; how it is measured is seen in ``test_times.py``."""

from fadeout.structures.channels.layer_times import LayerTimes


def test_noise_does_not_make_a_narrow_layer_slower():
    times = LayerTimes(8, [8, 16], [8, 16], [[3.0, 2.0], [2.5, 4.0]])
    assert [times.at(i, o) for i in (8, 16) for o in (8, 16)] == [3.0, 3.0, 3.0, 4.0]
