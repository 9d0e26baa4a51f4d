"""Products that skip zeros, where they are faster: a network for inference."""

import copy
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fadeout._arguments import ExampleInput, checked, fitting_example
from fadeout._tables import table
from fadeout._timing import BUSY, race, worst_spread
from fadeout.graph.example import Example
from fadeout.graph.heads import SplitHeads, projections
from fadeout.graph.outputs import agree, of_other_sizes
from fadeout.graph.side_effects import copied, undisturbed
from fadeout.torch_bridge.computed_parameters import computers
from fadeout.torch_bridge.modes import still
from fadeout.torch_bridge.parameters import unwrap
from fadeout.torch_bridge.submodules import replaced

_DENSEST = 0.5  # with more weights than this no sparse product is worth a trial
_BLOCKS = (32, 16, 8, 4)
_FULL = 1.5  # blocks may hold so many times the weights that are not zero
_FASTER = 0.97  # of the dense time, at most: less is noise


@dataclass(frozen=True)
class Choice:
    """What a layer runs, and why.

    Attributes:
        name: of the layer in the network.
        product: ``"dense"``, ``"csr"``, or ``"bsr 16"`` for blocks of 16 by 16.
        zeros: the fraction of its weights.
        milliseconds: of each product that was tried, on the example's batch.
        why: in words.
    """

    name: str
    product: str
    zeros: float
    milliseconds: Mapping[str, float]
    why: str


class SparseNetwork(nn.Module):
    """A network for inference whose layers use their zeros where that is faster. See :func:`sparse`.

    Attributes:
        module: the network, of the user's own class.
        choices: what each layer runs, and why.
        why: what was found of the whole.
    """

    def __init__(self, module: nn.Module, choices: tuple[Choice, ...], why: str):
        super().__init__()
        self.module, self.choices, self.why = module, choices, why
        self.train(False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return self.module(*args, **kwargs)

    def train(self, mode: bool = True) -> "SparseNetwork":
        """Only ``train(False)``, which is ``eval()``: train the network that it was made of."""
        if mode:
            raise ValueError(
                "fadeout.sparse() makes a network for inference, whose sparse weights cannot be trained: "
                "train the network that it was made of, and call fadeout.sparse() again"
            )
        return super().train(False)

    def __repr__(self) -> str:
        lines = [["layer", "product", "zeros", "dense", "chosen", "why"]]
        for choice in self.choices:
            times = [choice.milliseconds.get(way) for way in ("dense", choice.product)]
            shown = ["" if each is None else f"{each:.3g} ms" for each in times]
            lines.append([choice.name, choice.product, f"{choice.zeros:.1%}", *shown, choice.why])
        lines.append(["total", "", "", "", "", self.why])
        return "\n".join(line.rstrip() for line in table(lines, words=len(lines[0])))


@checked
def sparse(model: nn.Module, example_input: ExampleInput) -> SparseNetwork:
    """A network for inference that uses its zeros where, and only where, that is faster.

    Linear layers and convolutions of one by one may run as products with a CSR matrix or, where the zeros
    come in blocks, a block-CSR one. Each is timed against the dense product, on this machine, with these
    threads and for the batch of the example; so is the network as a whole, and where that is not faster it
    stays dense. The outputs are the same up to rounding, which is checked. ``print`` the result to see what
    was chosen, and why. A machine too busy to measure (quartiles more than 15 % apart, three times) is said
    to be; a sparse product is then chosen only where its upper quartile is below the lower one of the dense.

    The model is left as it is. The projections of an ``nn.MultiheadAttention`` count as layers of their own,
    ``q_proj``, ``k_proj``, ``v_proj`` and ``out_proj``, where most of their weights are zero.

    Args:
        model: the network, with zeros among its weights.
        example_input: a tensor, or a tuple of positional or a mapping of keyword arguments: of the batch
            size that it will be used with.

    >>> network = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> fast = sparse(network, torch.zeros(1, 8))
    >>> [choice.product for choice in fast.choices]
    ['dense', 'dense']
    """
    model = unwrap(model)
    example = Example.of(example_input)
    with undisturbed(model), fitting_example():
        example.run(model)
    dense = copied(model).requires_grad_(False)
    choices, made = _choose(_with_split_attentions(dense, _mostly_zero), example.run)
    if not made:
        return SparseNetwork(dense, choices, "no sparse product is faster")
    owners = {name.rpartition(".")[0] for name in made}
    fast = _with_split_attentions(dense, lambda name, _: name in owners)
    fast = replaced(fast, {fast.get_submodule(name): layer for name, layer in made.items()})
    if not all(agree(dense, fast, each) for each in (example, *of_other_sizes(dense, example))):
        why = "all dense: the outputs would differ, or the network reads the weights of its layers itself"
        return SparseNetwork(dense, choices, why)
    with still(dense), still(fast):
        timings = race({"dense": lambda: example.run(dense), "sparse": lambda: example.run(fast)})
    ratio = timings["dense"].median / timings["sparse"].median
    busy = f", on a busy machine (spread {worst_spread(timings):.0%})" if worst_spread(timings) > BUSY else ""
    if ratio < 1:
        why = f"all dense: the whole would take {1 / ratio:.2f} times as long{busy}"
        return SparseNetwork(dense, choices, why)
    return SparseNetwork(fast, choices, f"{ratio:.2f} times as fast{busy}")


def _with_split_attentions(model: nn.Module, chosen: Callable[[str, Any], bool]) -> nn.Module:
    """A copy in which these attentions have projections that are layers of their own."""
    twin = copy.deepcopy(model)
    attentions = [(n, one) for n, one in twin.named_modules() if type(one) is nn.MultiheadAttention]
    free = [(name, one) for name, one in attentions if not _has_hooks(one) and not _has_hooks(one.out_proj)]
    return replaced(twin, {one: SplitHeads(one) for name, one in free if chosen(name, one)})


def _mostly_zero(name: str, attention: Any) -> bool:
    """Whether a projection of an attention has so many zeros that a sparse product is worth a trial."""
    weights = [*projections(attention), attention.out_proj.weight]
    return any(int(weight.count_nonzero()) <= _DENSEST * weight.numel() for weight in weights)


def _choose(
    model: nn.Module, run: Callable[[nn.Module], Any]
) -> tuple[tuple[Choice, ...], dict[str, nn.Module]]:
    """What each layer should run, timed on what it is given when the network runs on the example."""
    choices: dict[str, Choice] = {}
    made: dict[str, nn.Module] = {}

    names = {layer: name for name, layer in model.named_modules() if _can_be_sparse(layer)}
    hooked = {layer for layer in names if _has_hooks(layer)}

    def look(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = names[layer]
        if layer in hooked:
            why = "it has hooks, which a sparse layer would not call"
            choices[name] = Choice(name, "dense", _zeros(layer), {}, why)
        elif name not in choices:  # a layer that runs several times is timed the first time
            choices[name], chosen = _time_layer(name, layer, args[0] if args else kwargs["input"])
            made.update({} if chosen is None else {name: chosen})

    hooks = [layer.register_forward_pre_hook(look, with_kwargs=True) for layer in names]
    try:
        with still(model):
            run(model)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(choices.values()), made


def _can_be_sparse(layer: nn.Module) -> bool:
    if type(layer) is nn.Linear:
        return True
    one_by_one = type(layer) is nn.Conv2d and layer.kernel_size == (1, 1) and layer.groups == 1
    return one_by_one and layer.padding in ((0, 0), "valid", "same")


def _has_hooks(layer: nn.Module) -> bool:
    """Whether a layer has hooks, besides those that compute its weight."""
    return bool(layer._forward_hooks) or len(layer._forward_pre_hooks) > len(list(computers(layer)))


def _zeros(layer: Any) -> float:
    """The fraction of its weights that are zero."""
    return 1 - int(layer.weight.count_nonzero()) / max(layer.weight.numel(), 1)


def _time_layer(name: str, layer: Any, given: Tensor) -> tuple[Choice, nn.Module | None]:
    """The fastest product of one layer."""
    zeros = _zeros(layer)
    if 1 - zeros > _DENSEST:
        return Choice(name, "dense", zeros, {}, "too few zeros"), None
    ways = _ways(layer, zeros)
    wait = torch.get_device_module(given.device).synchronize
    contestants: dict[str, Callable[[], object]] = {"dense": lambda: layer.forward(given)}
    for way, made in list(ways.items()):
        try:
            made(given)
        except (RuntimeError, NotImplementedError):  # no kernel for this type or device
            del ways[way]
            continue
        contestants[way] = lambda made=made: made(given)
    if not ways:
        return Choice(name, "dense", zeros, {}, f"no sparse product of {layer.weight.dtype} here"), None
    timings = race(contestants, wait)
    milliseconds = {way: 1e3 * timing.median for way, timing in timings.items()}
    busy = f", on a busy machine (spread {worst_spread(timings):.0%})" if worst_spread(timings) > BUSY else ""
    dense, best = timings["dense"], min(ways, key=lambda way: timings[way].median)
    ratio = dense.median / timings[best].median
    limit = min(_FASTER * dense.median, dense.lower if busy else dense.median)
    if (timings[best].upper if busy else timings[best].median) > limit:
        return Choice(name, "dense", zeros, milliseconds, f"{best} is {ratio:.2f} times as fast{busy}"), None
    return Choice(name, best, zeros, milliseconds, f"{ratio:.2f} times as fast{busy}"), ways[best]


def _ways(layer: Any, zeros: float) -> dict[str, nn.Module]:
    """The layer with each sparse product that may be worth it."""
    matrix = layer.weight.detach().flatten(1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        found = {"csr": matrix.to_sparse_csr()}
    for size in _BLOCKS:
        if matrix.shape[0] % size or matrix.shape[1] % size:
            continue
        tiles = matrix.unflatten(0, (-1, size)).unflatten(2, (-1, size)).ne(0).any(3).any(1)
        if tiles.double().mean() <= _FULL * (1 - zeros):
            found[f"bsr {size}"] = matrix.to_sparse_bsr((size, size))
            break
    kind: Any = SparseLinear if isinstance(layer, nn.Linear) else SparseConvolution
    return {way: kind(weight, layer) for way, weight in found.items()}


class SparseLayer(nn.Module):
    """A layer with a sparse matrix, for inference.

    Args:
        weight: the matrix of outputs by inputs, CSR or block-CSR.
        layer: whose bias it has.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, layer: nn.Linear | nn.Conv2d):
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().clone())

    def forward(self, input: Tensor) -> Tensor:
        device = input.device.type
        if not torch.is_autocast_enabled(device):
            return self._multiply(input)
        lower = torch.get_autocast_dtype(device)  # which has no sparse products
        with torch.autocast(device, enabled=False):
            return self._multiply(input.to(self.weight.dtype)).to(lower)

    @abstractmethod
    def _multiply(self, given: Tensor) -> Tensor:
        """The output, contiguous as a dense layer's, so that it can be viewed in other shapes."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "SparseLayer":
        memo[id(self.weight)] = self.weight.clone()  # torch makes no deep copies of sparse matrices
        twin = memo[id(self)] = type(self).__new__(type(self))
        vars(twin).update(copy.deepcopy(vars(self), memo))
        return twin


class SparseLinear(SparseLayer):
    """A linear layer with a sparse matrix."""

    def __init__(self, weight: Tensor, layer: nn.Linear):
        super().__init__(weight, layer)
        self.in_features, self.out_features = layer.in_features, layer.out_features

    def _multiply(self, given: Tensor) -> Tensor:
        rows = given.reshape(-1, self.in_features)
        if len(rows) == 1 and self.weight.layout is torch.sparse_csr:
            out = torch.mv(self.weight, rows[0])
        else:
            out = torch.mm(self.weight, rows.t()).t()
        out = out if self.bias is None else out + self.bias
        return out.reshape(*given.shape[:-1], self.out_features).contiguous()

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {self.weight.layout}"


class SparseConvolution(SparseLayer):
    """A convolution of one by one with a sparse matrix."""

    def __init__(self, weight: Tensor, layer: nn.Conv2d):
        super().__init__(weight, layer)
        self.stride = layer.stride

    def _multiply(self, given: Tensor) -> Tensor:
        batched = given if given.dim() == 4 else given[None]
        down, across = self.stride
        channels = batched[:, :, ::down, ::across].transpose(0, 1)
        out = torch.mm(self.weight, channels.reshape(len(channels), -1))
        out = out if self.bias is None else out.add_(self.bias[:, None])
        out = out.view(len(out), *channels.shape[1:]).transpose(0, 1).contiguous()
        return out if given.dim() == 4 else out[0]
