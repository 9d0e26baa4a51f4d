"""Neighbours and ordinals of floats."""

import pytest
import torch

from fadeout.selection.floats import after, before, number_at, ordinal_of

DTYPES = [torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_neighbours(dtype):
    one = torch.tensor(0.3, dtype=dtype)
    assert before(after(one.item(), dtype), dtype) == one.item()
    assert after(one.item(), dtype) > one.item()
    assert before(0.0, dtype) == 0
    assert before(torch.inf, dtype) == torch.inf


@pytest.mark.parametrize("dtype", DTYPES)
def test_ordinals_of_neighbours_differ_by_one(dtype):
    for number in (-torch.inf, -2.5, -1e-38, 0.0, 1e-44, 0.3, 1.0, 1e30):
        number = torch.tensor(number, dtype=dtype).item()
        assert number_at(ordinal_of(number, dtype), dtype) == number
        following = torch.nextafter(torch.tensor(number, dtype=dtype), torch.tensor(torch.inf, dtype=dtype))
        assert ordinal_of(following.item(), dtype) == ordinal_of(number, dtype) + 1
    assert ordinal_of(-0.0, dtype) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_beyond_infinity_there_is_infinity(dtype):
    beyond = ordinal_of(torch.inf, dtype) + 5
    assert number_at(beyond, dtype) == torch.inf
    assert number_at(-beyond, dtype) == -torch.inf
