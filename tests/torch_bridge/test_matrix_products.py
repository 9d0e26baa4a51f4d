"""Counting products: settings come back, and the kernel for whole recurrent networks is known."""

import pytest
import torch

from fadeout.torch_bridge.matrix_products import _layers, counting_products


def test_settings_come_back():
    was = torch.backends.mha.get_fastpath_enabled(), torch.backends.cuda.flash_sdp_enabled()
    with counting_products():
        assert not torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(ZeroDivisionError), counting_products():
        _ = 1 / 0
    assert (torch.backends.mha.get_fastpath_enabled(), torch.backends.cuda.flash_sdp_enabled()) == was


def test_counts_go_on():
    with counting_products() as so_far:
        counts = []
        for _ in range(2):
            torch.mm(torch.ones(2, 3), torch.ones(3, 4))
            counts.append(so_far())
    assert counts == [24, 48]


def test_a_module_that_is_given_a_view_of_a_parameter():
    """As learned latents are spread over the batch: without gradients it wants one, and has no function."""
    latents, layer = torch.nn.Parameter(torch.ones(1, 3)), torch.nn.Linear(3, 4)
    with torch.no_grad(), counting_products() as so_far:
        layer(latents.expand(2, -1))
    assert so_far() == 24


def test_a_recurrent_network_on_a_gpu():
    """One kernel takes the weights of all layers, which no machine without a GPU can run."""
    lstm = torch.nn.LSTM(8, 6, num_layers=2)
    shapes = [weight.shape for weight in lstm.parameters()]
    assert _layers(torch.Size([5, 3, 8]), shapes, 4) == 2 * 5 * 3 * 4 * 6 * (8 + 6 + 6 + 6)
