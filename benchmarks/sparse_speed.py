"""Zeros that are faster: what fadeout.sparse() chooses, and what it gains.

python benchmarks/speed.py sparse_speed
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from rows import Part, Row, table
from small_networks import CPU, command, quietly, threads
from stored_bytes import linear_stack
from torch import nn

import fadeout
from fadeout._timing import race
from fadeout.engines import clock_of
from fadeout.methods import one_shot
from fadeout.torch_bridge.modes import still


class Encoder(nn.Module):
    """An encoder block as large as those of BERT, with projections of its own."""

    def __init__(self, width: int = 768, heads: int = 12):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        attended = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.norms[0](x + self.out(attended))
        return self.norms[1](x + self.down(nn.functional.gelu(self.up(x))))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[int, ...]]]] = {
    "perceptron, 2 pairs of 768 and 3,072": (lambda: linear_stack(pairs=2), lambda batch: (batch, 768)),
    "encoder block of BERT, 16 tokens": (Encoder, lambda batch: (batch, 16, 768)),
}
STRUCTURES = {"elements": fadeout.Elements, "blocks of 16": lambda: fadeout.Blocks(16, 16)}
QUICK: dict[str, Any] = {
    "networks": {"perceptron": (lambda: linear_stack(64, 1), lambda batch: (batch, 64))},
    "targets": (0.9,),
    "batches": (1,),
    "counts": (1,),
}


def measure(
    networks: Mapping[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[int, ...]]]] = NETWORKS,
    targets: tuple[float, ...] = (0.9, 0.95, 0.98),
    batches: tuple[int, ...] = (1, 64),
    counts: tuple[int, ...] = (1, 2),
) -> Part:
    """Time each network as it is and as fadeout.sparse() made it, in turns.

    Args:
        networks: by name, what builds them, and the shape of their input for a batch.
        targets: fractions of the weights that are zero.
        batches: their sizes.
        counts: of threads.
    """
    rows, lines, facts = list[Row](), list[list[str]](), list[dict[str, Any]]()
    for name, (build, shape) in networks.items():
        for kind, structure in STRUCTURES.items():
            for target in targets:
                torch.manual_seed(0)
                model = build().eval()
                for parameter in model.parameters():
                    if parameter.dim() > 1:  # as large everywhere, or whole layers would be empty
                        nn.init.normal_(parameter, std=0.02)
                with quietly():
                    one_shot(model, target, structure=structure())
                for batch in batches:
                    for count in counts:
                        with threads(count):
                            speed, products = _speed(model, torch.randn(shape(batch)))
                        what = f"{name}, {kind}, {target:.0%}, batch {batch}, {count} threads"
                        rows.append(Row(what, [speed] * 3, "x", at_least=0.97))
                        facts.append({"what": what, "speed": speed, "products": products})
                        lines.append(
                            [name, kind, f"{target:.0%}", str(batch), str(count), f"{speed:.2f}x", products]
                        )
    about = (
        f"{command('sparse_speed', counts)}. Weights of least magnitude are zero; how many times as fast the "
        "result of `fadeout.sparse` is, and the products it chose. With one thread the clock is that of the "
        "process, with two that on the wall."
    )
    heads = ["network", "zeros in", "zeros", "batch", "threads", "speed", "products"]
    return Part("Zeros that are faster", about, rows, {"rows": facts}, table(heads, lines))


def _speed(model: nn.Module, given: torch.Tensor) -> tuple[float, str]:
    """How many times as fast, and which products were chosen."""
    fast = fadeout.sparse(model, given)
    is_dense = not any(one.layout is not torch.strided for one in fast.state_dict().values())
    chosen = Counter("dense" if is_dense else choice.product for choice in fast.choices)
    with still(model), still(fast):
        timings = race({"dense": lambda: model(given), "sparse": lambda: fast(given)}, clock=clock_of(CPU))
    words = ", ".join(f"{number} {product}" for product, number in chosen.items())
    return timings["dense"].median / timings["sparse"].median, words
