"""Floats in their order: neighbours, and *ordinals*, a float's bits as an integer.

An ordinal grows with its float, and neighbours differ by one, so that an interval of floats is divided as one
of integers is. Both zeros have the ordinal zero.
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])


def ordinal_of(number: float, dtype: torch.dtype) -> int:
    """The ordinal of a number as a float32 or float64.

    >>> ordinal_of(after(1.0, torch.float32), torch.float32) - ordinal_of(1.0, torch.float32)
    1
    """
    kind, bits = ("<d", "<q") if dtype == torch.float64 else ("<f", "<i")
    ordinal = struct.unpack(bits, struct.pack(kind, number))[0]
    return ordinal if ordinal >= 0 else -(ordinal & (2**63 - 1 if dtype == torch.float64 else 2**31 - 1))


def number_at(ordinal: int, dtype: torch.dtype) -> float:
    """The number of an ordinal; beyond infinity there is infinity.

    >>> number_at(ordinal_of(-0.5, torch.float64), torch.float64)
    -0.5
    """
    kind, bits = ("<d", "<q") if dtype == torch.float64 else ("<f", "<i")
    limit = ordinal_of(torch.inf, dtype)
    number = struct.unpack(kind, struct.pack(bits, min(abs(ordinal), limit)))[0]
    return number if ordinal >= 0 else -number


@lru_cache(maxsize=8)  # of a step: the same for every tensor
def after(number: float, dtype: torch.dtype) -> float:
    """The next larger number of a dtype.

    >>> after(1.0, torch.float64) - 1.0 == torch.finfo(torch.float64).eps
    True
    """
    return number_at(ordinal_of(number, dtype) + 1, dtype)


def before(number: float, dtype: torch.dtype) -> float:
    """The next smaller number of a dtype, from zero on: to be above it is to be at least the number.

    >>> before(after(0.25, torch.float32), torch.float32)
    0.25
    """
    return number if number in (0, torch.inf) else number_at(ordinal_of(number, dtype) - 1, dtype)


def double(tensor: Tensor) -> Tensor:
    """A tensor in float64; on the CPU, where its own device has none (MPS)."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def root_(tensor: Tensor) -> Tensor:
    """Square roots in place: NumPy's, where it can, as PyTorch's take six times as long for zeros.

    >>> root_(torch.tensor([0.0, 4.0]))
    tensor([0., 2.])
    """
    if torch.compiler.is_compiling() or tensor.device.type != "cpu" or tensor.dtype.itemsize < 4:
        return tensor.sqrt_()
    numbers = tensor.numpy()
    np.sqrt(numbers, out=numbers)
    return tensor


def as_array(tensor: Tensor) -> Any:
    """The same memory as an array of NumPy on a CPU, where its operators wake no threads; or the tensor.

    Narrow floats, which NumPy does not know, are widened.

    >>> as_array(torch.tensor([1.0, 2.0])) <= 1
    array([ True, False])
    """
    if tensor.device.type != "cpu":
        return tensor
    return (tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor).numpy()


def only_at(mask: Tensor, tensor: Tensor, out: Tensor | None = None) -> Tensor:
    """What is marked, and zero elsewhere: by NumPy, where it can; PyTorch takes twice as long on a CPU.

    Args:
        mask: True where a number is wanted.
        tensor: all numbers.
        out: memory to write into; by default new memory, which takes as long as the product itself.

    >>> only_at(torch.tensor([True, False]), torch.tensor([2.0, 3.0]))
    tensor([2., 0.])
    """
    if tensor.device.type != "cpu" or tensor.dtype not in (torch.float32, torch.float64):
        return torch.mul(tensor, mask, out=out)
    product = np.multiply(tensor.numpy(), mask.numpy(), out=None if out is None else out.numpy())
    return torch.as_tensor(product, device="cpu")


def exact(function: Function) -> Function:
    """Mark a function of tensors, each operation of which has one correct result, to which it is rounded.

    Sums, products, quotients and square roots are such, powers and logarithms are not. A compiler may fuse
    it: the result is the same to the last bit.
    """
    function.is_exact = True  # pyright: ignore[reportFunctionMemberAccess]
    return function
