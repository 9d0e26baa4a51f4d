"""How a network was cut, as plain data."""

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import fx, nn

from fadeout.graph.example import Example, from_data


@dataclass(frozen=True)
class Plan:
    """Which channels each value of a network kept: plain data, by which it can be cut again."""

    inputs: list[dict[str, Any]]
    """Shape and dtype of the example's positional arguments; see :func:`fadeout.graph.example.as_data`."""
    kept: dict[str, list[int]]
    """By the name of the value in the graph, the channels that stay, where some go."""
    constants: dict[str, dict[str, float]]
    """The constants other than zero that stand in for channels, by value and channel."""
    biases: list[str]
    """Modules that were given a bias, to fold constants into."""
    keep_forward: bool
    couple: bool
    keywords: dict[str, Any] = field(default_factory=dict)
    """The same of its keyword arguments."""
    was: dict[str, list[int]] = field(default_factory=dict)
    """For the reader: by the names they have now, the shapes that tensors had before they were cut."""
    parameters: int = 0
    """For the reader: how many parameters the network had before."""
    folded: dict[str, str] = field(default_factory=dict)
    """By the name of a layer, as it is now, that of the batch-norm which is part of it."""
    rewrite: bool = False
    """Whether the forward must be that of the graph, though no call in it changes: it asks for widths."""

    def __post_init__(self):
        # it may come from a file that somebody made
        try:
            tensors = self.example(torch.device("meta")).tensors  # which take no memory
            sizes = [*self.kept.values(), *self.was.values()]
            sound = (
                all(type(size) is int and 0 <= size < 2**63 for each in sizes for size in each)
                and all(isinstance(each, dict) for each in self.constants.values())
                and all(isinstance(each, str) for each in (*self.biases, *self.was, *self.kept))
                and all(isinstance(each, str) for pair in self.folded.items() for each in pair)
                and type(self.parameters) is int
                and type(self.rewrite) is bool
            )
        except (TypeError, AttributeError, KeyError, RuntimeError):  # too deep a nesting is one, too
            sound, tensors = False, []
        if not sound:
            raise ValueError("it is no plan: a field is of another kind than it should be")
        if any(tensor.numel() > _MOST_VALUES for tensor in tensors):
            raise ValueError(
                f"the example has more than {_MOST_VALUES:,} values, and whoever loads it makes one of "
                "the same size: compact it with a smaller batch"
            )

    def as_data(self) -> dict[str, Any]:
        """The fields, those that came later only where they say something: old files stay as they are."""
        later = ("keywords", "folded", "rewrite")
        return {name: value for name, value in asdict(self).items() if value or name not in later}

    def example(self, device: torch.device | None = None) -> Example:
        """Arguments like those of the example."""
        return Example(
            tuple(from_data(one, device) for one in self.inputs),
            {name: from_data(one, device) for name, one in self.keywords.items()},
        )


def plans_of(module: nn.Module) -> list[Plan]:
    """How a compact module came to be, from the user's own constructor on."""
    return list((module.meta if isinstance(module, fx.GraphModule) else module.__dict__).get(_PLANS, []))


def set_plans(module: nn.Module, plans: list[Plan]) -> None:
    """Note how a module came to be."""
    # a GraphModule is copied with its meta, but not with other attributes
    (module.meta if isinstance(module, fx.GraphModule) else module.__dict__)[_PLANS] = plans


_PLANS = "fadeout_plans"
_MOST_VALUES = 2**28  # a gigabyte of float32
