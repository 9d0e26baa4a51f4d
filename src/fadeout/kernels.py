"""Passes over weights, in pieces, so that nothing as large as the weights is made."""

import torch
from torch import Tensor


def flat(tensor: Tensor) -> Tensor:
    """A tensor as one row in the order of its memory, without a copy where that is possible."""
    order = _order(tensor)
    return tensor.permute(order).reshape(-1)


def by_rows(tensor: Tensor, positions: Tensor) -> Tensor:
    """Positions in :func:`flat` as positions row by row, whatever the memory layout."""
    order = _order(tensor)
    if order == sorted(order):
        return positions
    rows = torch.zeros_like(positions)
    strides = _row_strides(tensor.shape)
    for dimension in reversed(order):
        size = tensor.shape[dimension]
        rows += positions % size * strides[dimension]
        positions = positions // size
    return rows


def count(flats: list[Tensor], cuts: list[float], wide: torch.dtype, magnitude: bool) -> list[int]:
    """How many elements of all are below each of a few numbers; one read from the device."""
    home = flats[0].device
    sums = [
        torch.stack([(key < cut).count_nonzero() for cut in cuts])
        for row in flats
        for key in _keys(row, wide, magnitude)
    ]
    return torch.stack([s.to(home) for s in sums]).sum(0).tolist()


def between(
    flats: list[Tensor], low: float, high: float, wide: torch.dtype, magnitude: bool
) -> tuple[Tensor, list[Tensor]]:
    """The elements from ``low`` to below ``high``, all in one row, and for each tensor their positions.

    At the ends of the line, infinity itself is among them.
    """
    home, values, places = flats[0].device, [], []
    for row in flats:
        begun, own = 0, []
        for key in _keys(row, wide, magnitude):
            inside = key >= low
            inside &= key <= high if high == torch.inf else key < high
            found = _nonzero(inside)
            values.append(key[found].to(home))
            own.append(found + begun)
            begun += len(key)
        places.append(torch.cat(own) if own else torch.empty(0, dtype=torch.int64, device=row.device))
    return torch.cat(values), places


def pieces(row: Tensor) -> tuple[Tensor, ...]:
    """A row in pieces that a processor's cache holds; a GPU takes larger ones."""
    return row.split(1 << 18 if row.device.type == "cpu" else 1 << 24)


def _keys(row: Tensor, wide: torch.dtype, magnitude: bool):
    for piece in pieces(row):
        key = piece.abs() if magnitude else piece
        yield key if key.dtype == wide else key.to(wide)


def _nonzero(mask: Tensor) -> Tensor:
    """The positions of what is True, where that is little: eight are looked at together."""
    if mask.device.type != "cpu" or len(mask) < 1024:
        return mask.nonzero().squeeze(1)
    end = len(mask) // 8 * 8
    words = mask[:end].view(torch.int64).nonzero()
    near = (words * 8 + torch.arange(8)).view(-1)
    near = torch.cat([near, torch.arange(end, len(mask))])
    return near[mask[near]]


def _order(tensor: Tensor) -> list[int]:
    """The dimensions, the outermost in memory first."""
    if tensor.is_contiguous():
        return list(range(tensor.dim()))
    return sorted(range(tensor.dim()), key=lambda d: (-tensor.stride(d), d))


def _row_strides(shape: torch.Size) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return strides[::-1]
