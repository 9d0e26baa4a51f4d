"""Masks: which weights stay."""

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence

import safetensors
import torch
from torch import Tensor, nn
from torch.nn.utils.prune import custom_from_mask
from torch.optim import Optimizer

from fadeout._arguments import checked
from fadeout._files import write_tensors
from fadeout._tables import html_table, percent
from fadeout.torch_bridge.computed_parameters import torch_masks
from fadeout.torch_bridge.optimizers import as_list, set_to_zero
from fadeout.torch_bridge.parameters import check_held, named
from fadeout.torch_bridge.sharding import block_of, local, whole, write_for_all
from fadeout.torch_bridge.step_hooks import Rounds, StepHooks


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

    @checked
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

    def __eq__(self, other: object) -> bool:
        """Whether the same weights stay; of sharded masks, every process must ask."""
        if not isinstance(other, Masks):
            return NotImplemented
        return self.keys() == other.keys() and all(
            torch.equal(whole(mask).cpu(), whole(other[name]).cpu()) for name, mask in self.items()
        )

    def __repr__(self) -> str:
        return f"Masks({len(self)} parameters, {self.left} of {self.total} weights left)"

    def _repr_html_(self) -> str:
        counts = [(name, mask.numel(), int(whole(mask.sum()))) for name, mask in self.items()]
        rows = [[name, f"{n:,}", f"{left:,}", percent(left / max(n, 1))] for name, n, left in counts]
        return html_table([["parameter", "weights", "left", "share"], *rows], repr(self))

    @property
    def total(self) -> int:
        """How many weights the masks cover."""
        return sum(mask.numel() for mask in self.values())

    @property
    def left(self) -> int:
        """How many of them stay."""
        return sum(int(whole(mask.sum())) for mask in self.values())

    @property
    def sparsity(self) -> float:
        """The fraction that goes; 0 for no masks at all."""
        return 1 - self.left / self.total if self.total else 0.0

    @checked
    @torch.no_grad()
    def apply(self, model: nn.Module) -> None:
        """Set the weights that go to exactly zero: in the model, or in an averaged copy (EMA) of it.

        The model may be wrapped (DDP, ``torch.compile``, ``AveragedModel``). Where a name or a shape
        does not fit, a ``ValueError`` says which, and nothing is changed. A schedule-free optimizer would
        bring the weights back from its state: use :meth:`hold`.
        """
        for weight, mask in self._match(named(model)):
            weight.masked_fill_(~mask, 0)

    @checked
    def hold(self, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer]) -> StepHooks:
        """Keep the zeros at zero through further training: they are set again after each optimizer's step.

        Args:
            model: the network that the masks are for.
            optimizer: what trains it; it must hold the parameters that the masks name.

        Returns:
            a handle; its ``remove()`` lets the weights go free.
        """
        optimizers, parameters = as_list(optimizer), named(model)
        hold = _Hold(self, parameters, optimizers)
        check_held({name: parameters[name] for name in self}, optimizers)
        hold.end()
        return StepHooks(optimizers, hold, ahead=False)

    @checked
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to a safetensors file, in one move: a crash leaves the old file or the new one.

        The masks of a sharded model are gathered, so every process must call it; the first one writes, and
        the others wait until the file is there.
        """
        masks = {name: whole(mask).cpu().contiguous() for name, mask in self.items()}
        metadata = {"format": _FORMAT, "checksum": str(_checksum(masks))}
        write_for_all(self.values(), lambda: write_tensors(path, masks, metadata))

    @classmethod
    @checked
    def load(cls, path: str | os.PathLike[str]) -> "Masks":
        """Read what :meth:`save` wrote; a ``ValueError`` where it was altered, or is something else."""
        if os.path.isdir(path):
            raise IsADirectoryError(f"{os.fspath(path)} is a folder, not a file of masks")
        try:
            with safetensors.safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                masks = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
        except safetensors.SafetensorError as error:
            raise ValueError(f"{os.fspath(path)} is no whole safetensors file: {error}") from error
        found = metadata.get("format")
        if found not in (_FORMAT, _FIRST_FORMAT):
            raise ValueError(
                f"{os.fspath(path)} holds no masks that this fadeout reads: its format is {found!r}, not "
                f"{_FORMAT!r}"
            )
        # the first format has no checksum; a byte that is neither 0 nor 1 is no boolean
        flags = all(m.dtype == torch.bool and bool((m.view(torch.uint8) <= 1).all()) for m in masks.values())
        if not flags or (found == _FORMAT and metadata.get("checksum") != str(_checksum(masks))):
            raise ValueError(f"{os.fspath(path)} was altered, its checksum differs: restore a copy")
        return cls(masks)

    @classmethod
    def from_torch_prune(cls, model: nn.Module) -> "Masks":
        """Take over the masks of ``torch.nn.utils.prune``, which stay active in the model.

        They are named by the weights as they are once ``torch.nn.utils.prune.remove`` has made them
        permanent; then :meth:`hold` keeps the zeros, or a pruner goes on from there.

        >>> from torch.nn.utils import prune
        >>> model = nn.Sequential(nn.Linear(2, 2, bias=False))
        >>> model[0].weight.data = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> _ = prune.l1_unstructured(model[0], "weight", amount=0.5)
        >>> masks = Masks.from_torch_prune(model)
        >>> masks["0.weight"]
        tensor([[False, False],
                [ True,  True]])
        """
        masks = torch_masks(model)
        if not masks:
            raise ValueError(
                "no mask of torch.nn.utils.prune is active in this model: none was made, or "
                "torch.nn.utils.prune.remove has made all of them permanent"
            )
        return cls({name: mask.clone() for name, mask in masks.items()})

    def to_torch_prune(self, model: nn.Module) -> None:
        """Hand the masks to ``torch.nn.utils.prune``: a weight becomes ``weight_orig`` times ``weight_mask``.

        >>> model = nn.Sequential(nn.Linear(2, 2, bias=False))
        >>> Masks({"0.weight": torch.tensor([[True, False], [False, False]])}).to_torch_prune(model)
        >>> [name for name, _ in model.named_buffers()]
        ['0.weight_mask']
        """
        parameters = named(model)
        blocks = [mask for _, mask in self._match(parameters)]
        masks = {id(parameters[name]): mask for name, mask in zip(self, blocks, strict=True)}
        for module in model.modules():  # tied weights are found in each of theirs
            for kind, parameter in list(module._parameters.items()):
                if id(parameter) in masks:
                    custom_from_mask(module, kind, masks[id(parameter)])

    def _match(self, parameters: Mapping[str, nn.Parameter]) -> list[tuple[Tensor, Tensor]]:
        """This process's block of each parameter, and of its mask."""
        missing = [name for name in self if name not in parameters]
        if missing:
            raise ValueError(f"the masks are for another model: this one has no {', '.join(missing[:5])}")
        for name, mask in self.items():
            if mask.shape != parameters[name].shape:
                raise ValueError(
                    f"the mask of {name!r} has shape {tuple(mask.shape)}, "
                    f"the parameter {tuple(parameters[name].shape)}: the masks are for another model"
                )
        chosen = [(parameters[name], mask) for name, mask in self.items()]
        return [(local(p.detach()), block_of(mask, p).to(p.device)) for p, mask in chosen]


_FIRST_FORMAT, _FORMAT = "fadeout.masks", "fadeout.masks 2"


def _checksum(masks: Mapping[str, Tensor]) -> int:
    """CRC-32 of names, shapes and bytes."""
    checksum = 0
    for name in sorted(masks):
        checksum = zlib.crc32(f"{name} {list(masks[name].shape)} ".encode(), checksum)
        checksum = zlib.crc32(masks[name].flatten().view(torch.uint8).numpy().data, checksum)
    return checksum


class _Hold(Rounds):
    def __init__(self, masks: Masks, parameters: Mapping[str, nn.Parameter], optimizers: list[Optimizer]):
        blocks = zip(masks, masks._match(parameters), strict=True)
        self._gone = [(parameters[name], ~mask) for name, (_, mask) in blocks]
        self._optimizers = optimizers

    def between(self) -> None:
        self.end()  # the others may be skipped, or step in turns

    def end(self) -> None:
        for parameter, gone in self._gone:
            set_to_zero(parameter, gone, self._optimizers)
