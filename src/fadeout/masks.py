"""Masks: which weights stay."""

import os
from collections.abc import Iterator, Mapping, Sequence

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fadeout.files import write_atomically
from fadeout.hooks import StepHooks
from fadeout.parameters import named


class Masks(Mapping[str, Tensor]):
    """A mapping from a parameter's name to a boolean tensor, True where the weight stays.

    >>> model = nn.Linear(2, 2, bias=False)
    >>> masks = Masks({"weight": torch.tensor([[True, False], [False, False]])})
    >>> masks.sparsity
    0.75
    >>> masks.apply(model)
    >>> int(model.weight.count_nonzero())
    1
    """

    def __init__(self, masks: Mapping[str, Tensor]):
        self._masks = dict(masks)
        for name, mask in self._masks.items():
            if mask.dtype != torch.bool:
                raise ValueError(f"the mask of {name!r} is {mask.dtype}, but masks are boolean: True stays")

    def __getitem__(self, name: str) -> Tensor:
        return self._masks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._masks)

    def __len__(self) -> int:
        return len(self._masks)

    def __repr__(self) -> str:
        return f"Masks({len(self)} parameters, {self.left} of {self.total} weights left)"

    @property
    def total(self) -> int:
        """How many weights the masks cover."""
        return sum(mask.numel() for mask in self.values())

    @property
    def left(self) -> int:
        """How many of them stay."""
        return sum(int(mask.count_nonzero()) for mask in self.values())

    @property
    def sparsity(self) -> float:
        """The fraction that goes; 0 for no masks at all."""
        return 1 - self.left / self.total if self.total else 0.0

    def apply(self, model: nn.Module) -> None:
        """Set the weights that go to exactly zero: in the model, or in an averaged copy (EMA) of it.

        The model may be wrapped (DDP, ``torch.compile``, ``AveragedModel``). Where a name or a shape
        does not fit, a ``ValueError`` says which, and nothing is changed.
        """
        self.apply_to(named(model))

    @torch.no_grad()
    def apply_to(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """The same, for parameters by name."""
        for parameter, mask in self._match(parameters):
            parameter.masked_fill_(~mask.to(parameter.device), 0)

    def hold(self, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer]) -> StepHooks:
        """Keep the zeros at zero through further training: they are set again after every step.

        Returns a handle; its ``remove()`` lets the weights go free.
        """
        self.apply(model)
        optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        return StepHooks(optimizers, _Hold(self._match(named(model))))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to a safetensors file, in one move: a crash leaves the old file or the new one."""
        masks = {name: mask.contiguous() for name, mask in self.items()}
        write_atomically(path, lambda p: safetensors.torch.save_file(masks, p, {"format": "fadeout.masks"}))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Masks":
        """Read what :meth:`save` wrote."""
        try:
            return cls(safetensors.torch.load_file(path))
        except safetensors.SafetensorError as error:
            raise ValueError(f"{os.fspath(path)} is no whole safetensors file: {error}") from error

    def _match(self, parameters: Mapping[str, nn.Parameter]) -> list[tuple[nn.Parameter, Tensor]]:
        missing = [name for name in self if name not in parameters]
        if missing:
            raise ValueError(f"the masks are for another model: this one has no {', '.join(missing[:5])}")
        for name, mask in self.items():
            if mask.shape != parameters[name].shape:
                raise ValueError(
                    f"the mask of {name!r} has shape {tuple(mask.shape)}, "
                    f"the parameter {tuple(parameters[name].shape)}: the masks are for another model"
                )
        return [(parameters[name], mask) for name, mask in self.items()]


class _Hold:
    def __init__(self, pairs: list[tuple[nn.Parameter, Tensor]]):
        self._gone = [(parameter, ~mask.to(parameter.device)) for parameter, mask in pairs]

    def begin(self) -> None: ...

    def join(self, optimizer: Optimizer, wants_loss: bool) -> None: ...

    def end(self) -> None:
        for parameter, gone in self._gone:
            parameter.masked_fill_(gone, 0)
