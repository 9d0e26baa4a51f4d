"""What the paper publishes: every value of the tables and figures of its Section 4.

The paper is Tessier et al., "Rethinking Weight Decay for Efficient Neural Network Pruning", Journal of
Imaging 2022. Each table and figure is one file of the folder ``published``, laid out as in print and with
the printed digits. What looks wrong in print stays, and a comment says so; bold is not kept.

In these files a line that begins with the name of a field sets it for all lines below, with one cell for
all columns or one for each. ``removed`` and ``left`` are the two ways in which the paper counts a target,
both in percent. ``lines`` names the fields that the first cells of the data lines hold. All other lines
are data: an empty cell is no value, ``*`` is a value that the paper itself calls missing.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib.resources import files
from math import isclose
from typing import Any

TITLES = {
    "comparison": "Comparison with other methods' published results (Table 1)",
    "imagenet": "ResNet-50 on ImageNet (Table 2)",
    "cifar10-tradeoff": "Accuracy against sparsity, ResNet-20 on CIFAR-10 (Figures 2 and 3, Table 3)",
    "lenet-grid": "Grid of strengths, LeNet-5 on MNIST (Table 4)",
    "extended-grid": "Extended grid of strengths, growing and falling, ResNet-20 on CIFAR-10 (Table 5)",
    "structured-grid": "Grid of strengths for channels, ResNet-20 on CIFAR-10 (Table 6)",
    "unstructured-grids": "Grids of strengths over networks and data, single weights (Table 7)",
    "structured-grids": "Grids of strengths over networks and data, channels (Table 8)",
    "strengths": "Accuracy against sparsity for four pairs of strengths (Figure 4, Table 9)",
    "cora": "Graph convolutional network on Cora (Figure 5)",
    "ablation": "Without selectivity: weight decay, growing weight decay, SWD (Figure 6)",
    "cost": "Seconds per epoch with and without SWD (Table 10)",
}


@dataclass(frozen=True)
class Value:
    """One published number.

    Args:
        source: the table or figure, with its number in print, such as ``"Table 3"``.
        experiment: one of ``TITLES``.
        network: the function in ``fadeout.models``, or the name in Table 1 for networks that are not there.
        width: feature maps of the first stage (hidden units of the GCN), where the paper says so.
        data: ``"mnist"``, ``"cifar10"``, ``"cifar100"``, ``"imagenet"`` or ``"cora"``.
        structure: ``"elements"`` or ``"channels"``; ``"none"`` for the dense networks of the cost table.
        method: ``"dense"``, ``"han"``, ``"liu"``, ``"rewinding"``, ``"swd"``, ``"one_shot"``,
            ``"growing_decay"``, or the citation of a result that the paper quotes.
        sparsity: the fraction removed.
        metric: ``"after"`` and ``"top5"`` (top-1 and top-5 accuracy after removal), ``"change"`` (of top-1
            through removal), ``"against_dense"`` (top-1 minus that of the network without pruning),
            ``"operations"`` (percent left), ``"compression"``, ``"seconds"`` (an epoch) or ``"increase"``
            (of the seconds). Accuracies and increases are in percent, changes in points.
        value: the number; None where the paper has a hole.
        a_min: strength at the start, where the paper says it.
        a_max: strength at the end; below ``a_min`` in parts of the extended grid.
    """

    source: str
    experiment: str
    network: str
    width: int | None
    data: str
    structure: str
    method: str
    sparsity: float | None
    metric: str
    value: float | None
    a_min: float | None = None
    a_max: float | None = None


FIELDS = tuple(field.name for field in fields(Value))
_HEADERS = {*FIELDS, "removed", "left", "lines"} - {"source", "value", "sparsity"}
_NUMBERS = {"removed": float, "left": float, "width": int, "a_min": float, "a_max": float}


def _read(source: str, text: str) -> Iterator[Value]:
    """The values of one file, in the order of its lines."""
    said: dict[str, list[str]] = {}
    for first, *rest in csv.reader(line for line in text.splitlines() if not line.startswith("#")):
        if first in _HEADERS:
            said[first] = rest
            continue
        names, cells = said["lines"], [first, *rest]
        row, numbers = dict(zip(names, cells, strict=False)), cells[len(names) :]
        columns = {k: v * len(numbers) if len(v) == 1 else v for k, v in said.items() if k != "lines"}
        if wrong := [k for k, v in columns.items() if len(v) != len(numbers)]:
            raise ValueError(f"{source}: {wrong} and the line that begins with {first!r} differ in length")
        for column, number in enumerate(numbers):
            if number:
                yield _value(source, {k: v[column] for k, v in columns.items()} | row, number)


def _value(source: str, said: dict[str, str], number: str) -> Value:
    known: dict[str, Any] = {"width": None, "sparsity": None}
    known |= {k: _NUMBERS.get(k, str)(v) for k, v in said.items() if v}
    if "left" in known:
        known["removed"] = 100 - known.pop("left")
    if "removed" in known:
        known["sparsity"] = round(known.pop("removed") / 100, 6)  # 0.925 and not its neighbour
    value = None if number == "*" else float(number)
    return Value(source, value=value, **known)


_SOURCES = (*(f"Table {n}" for n in range(1, 11)), *(f"Figure {n}" for n in range(2, 7)))  # 1 is a drawing
_FOLDER = files("fadeout.experiments.paper") / "published"
VALUES: tuple[Value, ...] = tuple(
    value
    for source in _SOURCES
    for value in _read(source, (_FOLDER / f"{source.lower().replace(' ', '-')}.csv").read_text("utf-8"))
)


def published(experiment: str, **conditions: str | float | None) -> list[Value]:
    """The published values of an experiment whose fields are as asked for, in the order of the print.

    A figure and the table with its numbers both count: name the ``source`` to have one of them.

    >>> found = published("cifar10-tradeoff", source="Table 3", width=64, structure="elements", sparsity=0.99)
    >>> [(v.method, v.value) for v in found]
    [('han', 83.42), ('rewinding', 87.38), ('swd', 92.5)]
    """
    if experiment not in TITLES:
        raise ValueError(f"no experiment {experiment!r} in the paper; there are {', '.join(TITLES)}")
    if unknown := [name for name in conditions if name not in FIELDS]:
        raise ValueError(f"a value has no field {', '.join(unknown)}; its fields are {', '.join(FIELDS)}")
    return [
        value
        for value in VALUES
        if value.experiment == experiment
        and all(same(getattr(value, name), wanted) for name, wanted in conditions.items())
    ]


def same(value: Any, wanted: Any) -> bool:
    """Whether they are equal, numbers but for their rounding: a caller may write ``1 - 0.9``.

    >>> same(0.1, 1 - 0.9), same("swd", "han")
    (True, False)
    """
    if isinstance(value, int | float) and isinstance(wanted, int | float):
        return isclose(value, wanted, rel_tol=1e-6, abs_tol=1e-12)
    return value == wanted
