"""Channels gathered by index: what lies between layers that keep different ones."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Gather(nn.Module):
    """Output ``i`` is input ``index[i]``, or a constant where that is -1.

    Args:
        index: for each output the number of its input, or -1.
        constant: for each output the constant that stands in for a missing input.
        width: the number of inputs.
        axis: the dimension of the channels.

    >>> gather = Gather(torch.tensor([1, -1]), torch.tensor([0.0, 5.0]), width=2, axis=1)
    >>> gather(torch.tensor([[3.0, 4.0]]))
    tensor([[4., 5.]])
    """

    index: Tensor
    constant: Tensor
    scale: Tensor
    stays = False
    """Whether every input lies at its place already."""

    def __init__(self, index: Tensor, constant: Tensor, *, width: int, axis: int):
        super().__init__()
        self.axis, missing = axis, index < 0
        self.pads, self.shifts = bool(missing.any()), bool(constant[missing].any())
        here = torch.arange(len(index), device=index.device)
        self.stays = axis == 1 and len(index) == width and bool((missing | (index == here)).all())
        # a channel of zeros, put behind the inputs, stands in for those that are missing
        self.register_buffer("index", torch.where(missing, width, index))
        self.register_buffer("constant", torch.where(missing, constant, 0.0))
        self.register_buffer("scale", (~missing).to(constant), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.stays:
            # engines know batch-norms, and keep their own layout of memory through them
            scale, shift = self.scale.to(x.dtype), self.constant.to(x.dtype)
            return F.batch_norm(x, torch.zeros_like(scale), torch.ones_like(scale), scale, shift, eps=0.0)
        behind = x.dim() - 1 - self.axis
        if self.pads:
            x = F.pad(x, [0, 0] * behind + [0, 1])
        x = x.index_select(self.axis, self.index)
        return x + self.constant.to(x.dtype).view([-1] + [1] * behind) if self.shifts else x

    def extra_repr(self) -> str:
        return f"{len(self.index)} channels along {self.axis}" + ", each in its place" * self.stays
