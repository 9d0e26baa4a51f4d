"""Whether two networks give the same."""

import pytest
import torch
from torch import nn

from fadeout.graph.example import Example
from fadeout.graph.outputs import agree


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
