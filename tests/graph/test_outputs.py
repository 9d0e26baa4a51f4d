"""Whether two networks give the same."""

import pytest
import torch
from torch import nn

from fadeout.graph.example import Example
from fadeout.graph.outputs import agree, of_other_sizes


class Times(nn.Module):
    """The input times a factor."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


class PlusOne(nn.Module):
    def forward(self, x):
        return x + 1


@pytest.mark.parametrize(
    ("dtype", "rounding", "other"),
    [
        (torch.bfloat16, 1.02, 1.3),
        (torch.float16, 1.01, 1.25),
        (torch.float32, 1.0001, 1.01),
        (torch.float64, 1 + 1e-9, 1 + 1e-6),
        (torch.complex64, 1.0001, 1.01),
    ],
    ids=str,
)
def test_the_same_is_the_same_up_to_rounding(dtype, rounding, other):
    example = Example.of(torch.randn(4, 8, generator=torch.manual_seed(0)).to(dtype))
    assert agree(Times(1), Times(rounding), example)
    assert not agree(Times(1), Times(other), example)


def test_whole_numbers_are_compared_exactly():
    example = Example.of(torch.arange(1000) + 10**6)
    assert agree(Times(1), Times(1), example)
    assert not agree(Times(1), PlusOne(), example)


class Above(nn.Module):
    """The input, and where it is above a limit."""

    def __init__(self, limit: float):
        super().__init__()
        self.limit = limit

    def forward(self, x):
        return x, x > self.limit


def test_flags_are_compared():
    example = Example.of(torch.linspace(-1, 1, 9))
    assert agree(Above(0), Above(0), example)
    assert not agree(Above(0), Above(0.5), example)


def test_another_type_is_not_the_same():
    assert not agree(nn.Identity(), Times(1.0), Example.of(torch.arange(3)))


def test_a_network_that_misses_what_it_reads_is_not_the_same():
    class Reads(nn.Module):
        def forward(self, x):
            return x * self.factor

    assert not agree(Times(1), Reads(), Example.of(torch.ones(2)))


class Shifted(Times):
    """The input times a factor, and a large number."""

    def forward(self, x):
        return super().forward(x) + 20


class Picky(Times):
    """Takes nothing but zeros."""

    def forward(self, x):
        if x.any():
            raise KeyError(x)
        return super().forward(x) + 1


class Noise(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


def test_an_example_of_zeros_is_not_all_that_is_compared():
    example, before = Example.of(torch.zeros(2, 3)), torch.get_rng_state()
    assert agree(Times(1), Times(1), example)
    assert not agree(Times(1), Times(2), example)
    assert torch.equal(before, torch.get_rng_state())


def test_random_numbers_that_the_network_does_not_take():
    example = Example.of(torch.zeros(2, 3))
    assert agree(Picky(1), Picky(1), example)
    assert not agree(Picky(1), Times(1), example)
    assert not agree(Times(1), Picky(1), example)


@pytest.mark.parametrize("example", [torch.zeros(1, 8), torch.ones(1, 8), torch.randn(4, 8)])
def test_a_large_bias_hides_nothing(example):
    assert agree(Shifted(1), Shifted(1 + 1e-6), Example.of(example))
    assert not agree(Shifted(1), Shifted(0.95), Example.of(example))


def test_whole_inputs_have_a_spread_of_their_own():
    example = Example.of(torch.arange(4))
    assert agree(Shifted(0.1), Shifted(0.1), example)
    assert not agree(Shifted(0.1), Shifted(0.09), example)


def test_what_is_random_repeats_with_the_same_seed_only():
    example = Example.of(torch.zeros(2, 3))
    assert agree(Noise(), Noise(), example)
    assert not agree(Noise(), Noise(), example, seeds=(0, 1))


def test_a_number_beside_images_is_no_batch():
    """Its length is asked for nowhere."""
    example = Example.of((torch.tensor(2.0), torch.zeros(1, 3, 4, 4)))
    assert [one.tensors[1].shape for one in of_other_sizes(Product(), example)] == [(1, 3, 8, 8)]


class Product(nn.Module):
    def forward(self, x, y):
        return x * y
