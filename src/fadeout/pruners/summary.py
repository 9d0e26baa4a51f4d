"""What a pruner would leave of each parameter, as a table."""

from dataclasses import dataclass

from fadeout._tables import html_table, percent, table


@dataclass(frozen=True)
class Row:
    """What removal would leave of one parameter, or of all."""

    name: str
    weights: int
    left: int
    fade: float
    """The norm of what removal would take now, over the norm of what would stay."""


@dataclass(frozen=True)
class Summary:
    """What ``pruner.summary()`` gives: ``rows`` for the parameters, and ``total``; printed, it is a table.

    >>> print(Summary((Row("fc.weight", 1000, 100, 0.25),), Row("total", 1000, 100, 0.25)))
    parameter  weights  left  share  fade
    -------------------------------------
    fc.weight    1,000   100   10 %  0.25
    -------------------------------------
    total        1,000   100   10 %  0.25
    """

    rows: tuple[Row, ...]
    total: Row

    def __str__(self) -> str:
        return "\n".join(table(self._lines(), words=1))

    def _repr_html_(self) -> str:
        return html_table(self._lines())

    def _lines(self) -> list[list[str]]:
        return [["parameter", "weights", "left", "share", "fade"], *map(_cells, (*self.rows, self.total))]


def _cells(row: Row) -> list[str]:
    share = percent(row.left / row.weights) if row.weights else ""
    return [row.name, f"{row.weights:,}", f"{row.left:,}", share, f"{row.fade:.2g}"]
