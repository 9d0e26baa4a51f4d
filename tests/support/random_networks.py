"""Random networks out of the operators that compaction knows, with random channels zeroed."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

BATCH, SIDE = 3, 4


class Call(nn.Module):
    """A function or method as a step of its own; the tracing looks into it."""

    def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any):
        super().__init__()
        self.function, self.args, self.kwargs = function, args, kwargs

    def forward(self, *values: Any) -> Any:
        return self.function(*values, *self.args, **self.kwargs)


class FunctionalDropout(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, self.training)


class Attention(nn.Module):
    """Two heads of two dimensions over tokens; ``written`` spells the number of heads out."""

    def __init__(self, width: int, written: bool):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, 4) for _ in range(3))
        self.proj, self.heads = nn.Linear(4, width), 2 if written else -1

    def forward(self, x: Tensor) -> Tensor:
        b, t = x.size(0), x.size(1)
        q, k, v = (f(x).reshape(b, t, self.heads, 2).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Headed(nn.Module):
    """``nn.MultiheadAttention``, of which only the output is used."""

    def __init__(self, width: int, heads: int, **arguments: Any):
        super().__init__()
        self.inner = nn.MultiheadAttention(width, heads, **arguments)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.inner(query, key, value)[0]


class Program(nn.Module):
    """A list of steps: each takes values that were made before, by number, and makes one more."""

    def __init__(self, steps: list[tuple[nn.Module, list[int]]], outputs: list[int]):
        super().__init__()
        self.steps = nn.ModuleList(step for step, _ in steps)
        self.sources, self.outputs = [sources for _, sources in steps], outputs

    def forward(self, x: Tensor, y: Tensor) -> Any:
        values: list[Any] = [x, y]
        for step, sources in zip(self.steps, self.sources, strict=True):
            values.append(step(*(values[i] for i in sources)))
        outputs = [values[i] for i in self.outputs]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


@dataclass
class Drawing:
    """A network in the making: the steps so far, and the values they give for the example."""

    random: Random
    rank: int
    values: list[Any]
    steps: list[tuple[nn.Module, list[int]]]

    def pick(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def add(self, step: nn.Module, *sources: int) -> int:
        with torch.no_grad():
            self.values.append(step.double().eval()(*(self.values[i] for i in sources)))
        self.steps.append((step, list(sources)))
        return len(self.values) - 1

    def shape(self, value: int) -> tuple[int, ...]:
        return tuple(self.values[value].shape)

    def side(self, value: int) -> int:
        """The smallest size behind the channels of maps."""
        return min(self.shape(value)[2:])

    def is_tensor(self, value: int) -> bool:
        return isinstance(self.values[value], Tensor)

    def like(self, value: int) -> list[int]:
        """Values of the same shape."""
        tensors = [i for i in range(len(self.values)) if self.is_tensor(i)]
        return [i for i in tensors if self.shape(i) == self.shape(value)]

    def kind(self, value: int) -> str:
        """Maps with their positions behind the channels, tokens with channels last, or bare features."""
        if len(self.shape(value)) == 2:
            return "features"
        return "maps" if len(self.shape(value)) == self.rank + 2 else "tokens"

    def sized(self, name: str) -> Any:
        """The class for this number of dimensions: ``sized("Conv")`` is ``nn.Conv2d``."""
        return getattr(nn, f"{name}{self.rank}d")


def _groups(d: Drawing, inputs: int) -> tuple[int, int]:
    """A number of groups and of outputs: dense, depthwise or in between."""
    groups = d.pick(1, 1, 1, inputs, *(g for g in (2, 3) if inputs % g == 0))
    return groups, groups * d.pick(1, 2) if groups > 1 else d.pick(2, 3, 4, 6)


def convolution(d: Drawing, x: int) -> int:
    inputs, side = d.shape(x)[1], d.side(x)
    groups, outputs = _groups(d, inputs)
    kernel = d.pick(*(k for k in (1, 2, 3) if k <= side))
    padding = d.pick(0, 1) if kernel == 3 else 0
    mode = d.pick("zeros", "zeros", "replicate", "circular") if padding else "zeros"
    step = d.sized("Conv")(
        inputs, outputs, kernel, padding=padding, groups=groups, bias=d.pick(True, False), padding_mode=mode
    )
    return d.add(step, x)


def transposed(d: Drawing, x: int) -> int:
    if d.side(x) > SIDE:
        return x
    groups, outputs = _groups(d, d.shape(x)[1])
    step = d.sized("ConvTranspose")(
        d.shape(x)[1], outputs, d.pick(1, 2), stride=d.pick(1, 2), groups=groups, bias=d.pick(True, False)
    )
    return d.add(step, x)


def linear(d: Drawing, x: int) -> int:
    return d.add(nn.Linear(d.shape(x)[-1], d.pick(3, 4, 6), bias=d.pick(True, False)), x)


def batch_norm(d: Drawing, x: int) -> int:
    kind = nn.BatchNorm1d if d.kind(x) == "features" else d.sized("BatchNorm")
    return d.add(kind(d.shape(x)[1], momentum=d.pick(0.1, 0.5)), x)


def group_norm(d: Drawing, x: int) -> int:
    width = d.shape(x)[1]
    return d.add(nn.GroupNorm(d.pick(*(g for g in (1, 2, 3, width) if width % g == 0)), width), x)


def layer_norm(d: Drawing, x: int) -> int:
    return d.add(d.pick(nn.LayerNorm, nn.RMSNorm)(d.shape(x)[-1]), x)


def activation(d: Drawing, x: int) -> int:
    width = d.shape(x)[1]
    kinds = [nn.ReLU, nn.Sigmoid, nn.Softplus, nn.GELU, nn.LeakyReLU, lambda: nn.Hardsigmoid(), nn.PReLU]
    if d.kind(x) != "tokens":
        kinds.append(lambda: nn.PReLU(width))
    calls = [
        F.relu,
        torch.sigmoid,
        torch.tanh,
        lambda v: v.clamp(max=2).exp(),  # no infinities
        F.silu,
        lambda v: v.clone(),
        lambda v: v.contiguous(),
    ]
    calls = [*calls, lambda v: v.clamp(-1, 2), lambda v: v.clamp(0.25), lambda v: v.abs().add_(0.5)]
    calls = [*calls, lambda v: 1 - v, lambda v: v * 2 - 0.5, lambda v: v / 3, lambda v: (-v).relu_()]
    step = d.pick(*kinds, *(lambda call=call: Call(call) for call in calls))()
    return d.add(step, x)


def pool(d: Drawing, x: int) -> int:
    if d.side(x) < 2:
        return x
    functional = getattr(F, d.pick("max_pool", "avg_pool") + f"{d.rank}d")
    adaptive = getattr(F, d.pick("adaptive_avg_pool", "adaptive_max_pool") + f"{d.rank}d")
    steps = (
        d.sized("MaxPool")(2),
        d.sized("AvgPool")(min(3, d.side(x)), stride=2, padding=1),
        d.sized("AdaptiveAvgPool")(2),
        d.sized("AdaptiveMaxPool")(2),
        Call(functional, 2),
        Call(adaptive, 1),
    )
    return d.add(d.pick(*steps), x)


def upsample(d: Drawing, x: int) -> int:
    if d.side(x) > SIDE:
        return x
    smooth = ("linear", "bilinear", "trilinear")[d.rank - 1]
    call = Call(F.interpolate, scale_factor=2)
    return d.add(d.pick(nn.Upsample(scale_factor=2, mode=smooth), nn.Upsample(scale_factor=2), call), x)


def padding(d: Drawing, x: int) -> int:
    if d.side(x) > SIDE:
        return x
    around = (1, 0) * d.rank
    steps = (
        d.sized("ConstantPad")(around, 0.5),
        d.sized("ZeroPad")(around),
        d.sized("ReplicationPad")(around),
        Call(F.pad, around),
        Call(F.pad, around, "replicate"),
    )
    return d.add(d.pick(*steps), x)


def dropout(d: Drawing, x: int) -> int:
    return d.add(d.pick(nn.Dropout(0.5), FunctionalDropout()), x)


def arithmetic(d: Drawing, x: int) -> int:
    """With a value of the same shape, or one number for each channel."""
    operation = d.pick(operator.add, operator.add, torch.sub, operator.mul)
    if d.kind(x) == "maps" and d.pick(True, False, False):
        gate = d.add(d.sized("AdaptiveAvgPool")(1), d.pick(*d.like(x)))
        return d.add(Call(operation), *d.pick((x, gate), (gate, x)))
    return d.add(Call(operation), x, d.pick(*d.like(x)))


def residual(d: Drawing, x: int) -> int:
    """An addition both sides of which have weights of their own."""
    width = d.shape(x)[1]
    other = d.add(d.sized("Conv")(width, width, 3, padding=1), x)
    shortcut = d.add(d.sized("Conv")(width, width, 1), x)
    return d.add(Call(d.pick(operator.add, operator.sub, operator.mul)), other, shortcut)


def concatenation(d: Drawing, x: int) -> int:
    axis = -1 if d.kind(x) == "tokens" else 1
    return d.add(Call(lambda *parts: torch.cat(parts, axis)), x, d.pick(*d.like(x)))


def division(d: Drawing, x: int) -> int:
    """``chunk`` or ``split``: the pieces are values of their own."""
    axis = -1 if d.kind(x) == "tokens" else 1
    width = d.shape(x)[axis]
    if width < 2:
        return x
    step = d.pick(
        Call(torch.chunk, 2, axis),
        Call(lambda v: v.split([1, width - 1], axis)),
        Call(torch.split, 1, dim=axis),
    )
    pieces = d.add(step, x)
    count = len(d.values[pieces])
    first, last = (d.add(Call(operator.getitem, i), pieces) for i in (0, count - 1))
    return d.pick(first, last)


def shuffle(d: Drawing, x: int) -> int:
    if d.rank != 2 or d.shape(x)[1] > 6:
        return x
    if d.shape(x)[1] == 4:
        return d.add(d.pick(nn.PixelShuffle(2), Call(F.pixel_shuffle, 2)), x)
    return x if any(size % 2 for size in d.shape(x)[2:]) else d.add(nn.PixelUnshuffle(2), x)


def cropping(d: Drawing, x: int) -> int:
    return d.add(Call(d.pick(lambda v: v[:, :, ::2], lambda v: v[..., : v.size(-1) // 2 + 1])), x)


def reduction(d: Drawing, x: int) -> int:
    """To features: flattened, reshaped, or the mean, maximum or sum over the positions."""
    dims = tuple(range(2, 2 + d.rank))
    numel = d.values[x][0].numel()
    steps = (
        nn.Flatten(),
        Call(torch.flatten, 1),
        Call(lambda v: v.contiguous().view(v.size(0), -1)),
        Call(torch.reshape, (BATCH, numel)),
        Call(lambda v: v.mean(dims)),
        Call(torch.amax, dim=dims),
        Call(lambda v: v.sum(dims, keepdim=True).flatten(1)),
    )
    return d.add(d.pick(*steps), x)


def tokens(d: Drawing, x: int) -> int:
    if d.rank != 2:  # with others tokens and maps cannot be told apart
        return x
    width, positions = d.shape(x)[1], d.shape(x)[2] * d.shape(x)[3]
    calls = (
        lambda v: v.flatten(2).transpose(1, 2),
        lambda v: v.reshape(v.shape[0], v.shape[1], -1).permute(0, 2, 1),
        lambda v: v.contiguous().view(BATCH, width, positions).movedim(1, -1),
    )
    return d.add(Call(d.pick(*calls)), x)


def attention(d: Drawing, x: int) -> int:
    return d.add(Attention(d.shape(x)[-1], d.pick(True, False)), x)


def headed(d: Drawing, x: int) -> int:
    """Over values of the same shape; keys and values may be of another width."""
    width = d.shape(x)[-1]
    heads = d.pick(*(h for h in (1, 2, 3) if width % h == 0))
    other = d.pick(*d.like(x))
    key, value = (linear(d, other), linear(d, other)) if d.pick(True, False) else (other, other)
    step = Headed(
        width,
        heads,
        kdim=d.shape(key)[-1],
        vdim=d.shape(value)[-1],
        bias=d.pick(True, True, False),
        add_bias_kv=d.pick(True, False, False),
        add_zero_attn=d.pick(True, False, False),
        batch_first=True,
    )
    return d.add(step, x, key, value)


def pooled_tokens(d: Drawing, x: int) -> int:
    return d.add(Call(lambda v: v.mean(1)), x)


def again(d: Drawing, x: int) -> int:
    """A module that was used before, on another value of the same shape."""
    like = [[i] for i in d.like(x)]
    steps = [step for i, (step, sources) in enumerate(d.steps, 2) if sources in like and d.is_tensor(i)]
    return d.add(d.pick(*steps), x) if steps else x


SHARED = (activation, arithmetic, concatenation, division, again)
BUILDERS: dict[str, tuple[Callable[[Drawing, int], int], ...]] = {
    "maps": (
        *(convolution, convolution, convolution, transposed, batch_norm, batch_norm, group_norm),
        *(residual, pool, upsample, padding, shuffle, cropping, reduction, tokens, tokens),
        *SHARED,
    ),
    "features": (linear, linear, batch_norm, layer_norm, *SHARED),
    "tokens": (linear, linear, layer_norm, attention, headed, headed, pooled_tokens, *SHARED),
}


@dataclass
class Case:
    """A network, an input for it, and whether its outputs are random in training mode."""

    model: Program
    inputs: tuple[Tensor, Tensor]
    drops: bool


@st.composite
def cases(draw: Any, rank: int, start: Callable[[Drawing, int], int] | None = None) -> Case:
    """A network for maps of so many dimensions; after a residual sum perhaps with a given start."""
    random = draw(st.randoms(use_true_random=True))  # of a seed that hypothesis draws
    torch.manual_seed(random.randrange(10**6))
    shape = (BATCH, random.choice((2, 4)), *[SIDE] * rank)
    inputs = torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    d = Drawing(random, rank, list(inputs), [])
    drops = draw(st.booleans())
    x = residual(d, convolution(d, d.pick(0, 1)))
    x = x if start is None else start(d, x)
    for _ in range(draw(st.integers(1, 8))):
        x = d.pick(*BUILDERS[d.kind(x)], *[dropout] * drops)(d, x)
    while d.kind(x) != "features":
        x = (reduction if d.kind(x) == "maps" else pooled_tokens)(d, x)
    outputs = [d.add(nn.Linear(d.shape(x)[1], 2), x)]
    if d.pick(True, False, False):
        outputs.append(d.pick(*(i for i in range(2, len(d.values)) if d.is_tensor(i))))
    model = Program(d.steps, outputs)
    for module in model.modules():
        fill(module)
        zero(module)
    return Case(model, inputs, drops)


@torch.no_grad()
def fill(module: nn.Module) -> None:
    """Random parameters and running statistics."""
    for parameter in module.parameters(recurse=False):
        parameter.normal_(0.5, 1)
    if isinstance(getattr(module, "running_var", None), Tensor):
        module.running_mean.normal_()
        module.running_var.uniform_(0.5, 2)


@torch.no_grad()
def zero(module: nn.Module) -> None:
    """Some channels go: rows of weights with their bias or without it, columns, scales, shifts."""

    def some(width: int) -> Tensor:
        return torch.rand(width) < torch.rand(()) * 0.4

    if isinstance(module, nn.MultiheadAttention):
        silence(module, some(module.num_heads))
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if weight is None or isinstance(module, nn.PReLU):
        return
    rows = some(len(weight))
    weight[rows] = 0
    if weight.dim() > 1:
        weight[:, some(weight.shape[1]) & (torch.rand(()) < 0.5)] = 0
    if bias is not None and torch.rand(()) < 0.7:
        rows = rows if len(bias) == len(rows) else some(len(bias))
        bias[rows] = 0


def silence(module: nn.MultiheadAttention, heads: Tensor) -> None:
    """The values of these heads are zero, biases and all."""
    rows = heads.repeat_interleave(module.head_dim)
    whole = torch.cat([torch.zeros_like(rows), torch.zeros_like(rows), rows])
    for parameter, gone in (
        (module.in_proj_weight, whole),
        (module.in_proj_bias, whole),
        (module.v_proj_weight, rows),
    ):
        if parameter is not None:
            parameter[gone] = 0
    if module.bias_v is not None:
        module.bias_v[..., rows] = 0
