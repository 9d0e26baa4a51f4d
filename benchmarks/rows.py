"""What a benchmark finds, and how it is shown: figures with their targets, and tables."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Unit = Literal["x", "%", "ms", "MB", ""]


@dataclass(frozen=True)
class Row:
    """A figure and its target.

    Args:
        what: was measured.
        values: its quartiles, in the unit; ``%`` takes fractions.
        unit: of the values.
        at_least, at_most: the target, if there is one.

    >>> Row("speed", [1.9, 2.0, 2.1], "x", at_least=3).cells()
    ['speed', '2.00x', '1.90x to 2.10x', 'at least 3x', 'no']
    """

    what: str
    values: Sequence[float]
    unit: Unit = ""
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the median meets the target; None where there is none."""
        if self.at_least is None and self.at_most is None:
            return None
        low = -float("inf") if self.at_least is None else self.at_least
        high = float("inf") if self.at_most is None else self.at_most
        return low <= self.values[1] <= high

    def cells(self) -> list[str]:
        """As texts: what, median, quartiles, target, met."""
        low, middle, high = (self._text(value) for value in self.values)
        limit = self.at_most if self.at_least is None else self.at_least
        words = "at most" if self.at_least is None else "at least"
        target = "" if limit is None else f"{words} {self._text(limit, short=True)}"
        spread = f"{low} to {high}" if low != high else ""  # a count has none
        return [self.what, middle, spread, target, {None: "", True: "yes", False: "no"}[self.met]]

    def as_dict(self) -> dict[str, Any]:
        """For a file."""
        limits = {"at_least": self.at_least, "at_most": self.at_most}
        target = {name: limit for name, limit in limits.items() if limit is not None}
        return {
            "what": self.what,
            "quartiles": list(self.values),
            "unit": self.unit,
            **target,
            "met": self.met,
        }

    def _text(self, value: float, short: bool = False) -> str:
        scaled = value * 100 if self.unit == "%" else value
        gap = "" if self.unit in ("x", "") else " "
        return f"{scaled:g}{gap}{self.unit}" if short else f"{_three_digits(scaled)}{gap}{self.unit}"


@dataclass
class Part:
    """What one benchmark found."""

    title: str
    about: str
    """What was measured, for the reader of the table."""
    rows: list[Row]
    facts: dict[str, Any] = field(default_factory=dict)
    """The rest of the numbers, for the file."""
    own_table: str = ""
    """Instead of one line for each row."""

    def text(self) -> str:
        """Title, explanation and table, as Markdown."""
        headers = ["", "median", "quartiles", "target", "met"]
        cells = [row.cells() for row in self.rows]
        if all(row.met is None for row in self.rows):
            headers, cells = headers[:3], [row[:3] for row in cells]
        return f"### {self.title}\n\n{self.about}\n\n{self.own_table or table(headers, cells)}"

    def as_dict(self) -> dict[str, Any]:
        """For a file."""
        return {"title": self.title, "rows": [row.as_dict() for row in self.rows], **self.facts}


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns also stand straight on a terminal.

    >>> print(table(["name", "speed"], [["a", "2x"]]))
    | name | speed |
    |------|-------|
    | a    | 2x    |
    """
    widths = [max(len(row[i]) for row in (headers, *rows)) for i in range(len(headers))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([line(headers), rule, *map(line, rows)])


def _three_digits(value: float) -> str:
    if value == 0:
        return "0"
    decimals = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{decimals}f}" if abs(value) >= 0.05 else f"{value:.2g}"
