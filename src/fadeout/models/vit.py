"""A small vision transformer (Dosovitskiy et al., 2021), with normalisation first and mean pooling."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fadeout._arguments import Count, checked


class Attention(nn.Module):
    """Self-attention with queries, keys and values as layers of their own.

    The number of heads follows from the width of those layers, so that whole heads can be cut out.
    """

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.head_dim = dim // heads
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, dim)

    @property
    def heads(self) -> int:
        """How many heads there are now."""
        return self.q.out_features // self.head_dim

    def forward(self, x: Tensor) -> Tensor:
        b, t = x.size(0), x.size(1)
        heads = (f(x).reshape(b, t, -1, self.head_dim).transpose(1, 2) for f in (self.q, self.k, self.v))
        out = F.scaled_dot_product_attention(*heads)
        return self.proj(out.transpose(1, 2).reshape(b, t, -1))


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each added to the stream."""

    def __init__(self, dim: int, heads: int, mlp_ratio: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, mlp_ratio * dim)
        self.fc2 = nn.Linear(mlp_ratio * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


@checked
class VisionTransformer(nn.Module):
    """See :func:`vit`."""

    def __init__(
        self,
        num_classes: Count,
        image_size: Count,
        patch: Count,
        dim: Count,
        depth: Count,
        heads: Count,
        mlp_ratio: Count,
    ):
        super().__init__()
        if dim % heads:
            raise ValueError(f"heads must divide dim, got {heads} heads for dim {dim}")
        if image_size % patch:
            raise ValueError(f"patch must divide image_size, got patch {patch} for image_size {image_size}")
        self.patches = nn.Conv2d(3, dim, patch, stride=patch)
        self.position = nn.Parameter(0.02 * torch.randn(1, (image_size // patch) ** 2, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads, mlp_ratio) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.fc = nn.Linear(dim, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        return self.fc(self.norm(self.blocks(x)).mean(1))


def vit(
    num_classes: int = 10,
    image_size: int = 32,
    patch: int = 4,
    dim: int = 192,
    depth: int = 6,
    heads: int = 3,
    mlp_ratio: int = 4,
) -> VisionTransformer:
    """A small vision transformer.

    Args:
        num_classes: outputs.
        image_size: height and width of the images, a multiple of ``patch``.
        patch: height and width of what becomes one token.
        dim: width of the residual stream, a multiple of ``heads``.
        depth: number of blocks.
        heads: attention heads in each block.
        mlp_ratio: width of the perceptron's hidden layer over ``dim``.

    >>> network = vit(num_classes=5, image_size=8, dim=12, depth=1)
    >>> network(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 5])
    """
    return VisionTransformer(num_classes, image_size, patch, dim, depth, heads, mlp_ratio)
