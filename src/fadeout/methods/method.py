"""What a method is to an experiment: phases of training, options, and how a report shows it.

A method declares itself with a :class:`Method` at the end of its own file in this folder;
:mod:`fadeout.methods.registry` finds it there.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any, Literal, NamedTuple, get_args


@dataclass(frozen=True)
class Phase:
    """A stretch of training.

    Attributes:
        name: what it is called in the metrics.
        epochs: its length; a phase of none is a removal alone.
        remove: the fraction that is removed before it begins, and held at zero from then on.
        pruner: builds the pruner that acts during it, from (model, optimizer, steps=, structure=); the
            pruner's own removal ends the phase.
        restart: a new optimizer and the learning rates of a whole training; otherwise it goes on at the last
            learning rate, with the optimizer's state.
        lr: the learning rate to go on at instead.
    """

    name: str
    epochs: int
    remove: float | None = None
    pruner: Callable[..., Any] | None = None
    restart: bool = False
    lr: float | None = None


class Option(NamedTuple):
    """A setting that only some methods have: its type, its default, and a text for ``--help``."""

    type: Any
    default: Any
    help: str


@dataclass(frozen=True)
class Method:
    """How a run of this method goes, and how a report shows it.

    Attributes:
        name: on the command line.
        phases: from settings of a run to its phases. Arguments without a default are fields that every run
            has. Those with a default are the method's own options, annotated with their help text,
            ``Annotated[int, "removals"]``; each becomes a field of a run. The docstring's first line is what
            ``fadeout list`` says. Settings that make no sense together raise a ``ValueError``.
        label: in tables and figures.
        colour, dark_colour: of its lines, on white and on a dark page.
        marker: of its points, a name of matplotlib's.
        order: where it is listed; methods that do not care come last.

    >>> def halves(epochs, sparsity, share: Annotated[float, "of the epochs, before removal"] = 0.5):
    ...     'Train, remove, fine-tune.'
    ...     first = round(share * epochs)
    ...     return [Phase("train", first, restart=True), Phase("tune", epochs - first, remove=sparsity)]
    >>> Method("halves", halves, label="halves", colour="#803080").options
    {'share': Option(type=<class 'float'>, default=0.5, help='of the epochs, before removal')}
    """

    name: str
    phases: Callable[..., list[Phase]]
    label: str
    colour: str
    dark_colour: str = ""
    marker: str = "h"
    order: int = 100

    @cached_property
    def fields(self) -> list[str]:
        """The settings of a run that its phases depend on."""
        return list(inspect.signature(self.phases).parameters)

    @cached_property
    def options(self) -> dict[str, Option]:
        """The method's own settings, by name."""
        parameters = inspect.signature(self.phases, eval_str=True).parameters.values()
        own = {p.name: (p.default, *get_args(p.annotation)) for p in parameters if p.default is not p.empty}
        return {name: Option(kind, default, help) for name, (default, kind, help) in own.items()}

    @property
    def summary(self) -> str:
        """The first line of its description."""
        return (inspect.getdoc(self.phases) or "").partition("\n")[0]


CriterionName = Annotated[Literal["magnitude", "lamp"], "which weights go first"]


def train(pruner: Callable[..., Any], epochs: int, **arguments: Any) -> list[Phase]:
    """One training, during which a pruner with these arguments acts."""
    return [Phase("train", epochs, pruner=partial(pruner, **arguments), restart=True)]


def check_structure(method: str, structure: str, wanted: Literal["elements", "channels"]) -> None:
    """Raise where a method that prunes nothing else is to prune another structure."""
    if structure != wanted:
        units = {"elements": "single weights", "channels": "whole channels"}
        raise ValueError(f"{method} prunes {units[wanted]}: --structure {wanted}")
