"""Small charts for a terminal: points of braille, two by four in each character."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red")
_ROWS, _MARGIN, _NARROWEST = 7, 8, 48
_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a character, by row and column

Points = Iterable[tuple[float, float]]


class Chart:
    """Some series of points in one frame, as wide as there is room.

    Args:
        series: points by name; each name has its colour, in order.
        x_range: what the width stands for; by default from the lowest to the highest.
        ends: what stands below it, on the left and on the right.
        joined: whether points that follow each other are joined.
    """

    def __init__(
        self,
        title: str,
        series: Mapping[str, Points],
        x_range: tuple[float, float] | None = None,
        ends: tuple[str, str] = ("", ""),
        joined: bool = True,
    ):
        self._title, self._ends, self._joined = title, ends, joined
        self._series = {name: list(points) for name, points in series.items()}
        every = [point for points in self._series.values() for point in points]
        self._x = _span(x_range or [x for x, _ in every])
        self._y = _span([y for _, y in every])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(1, options.max_width - _MARGIN - 1)
        head = Text(f"{'':{_MARGIN}} {self._title}", style="bold", no_wrap=True, overflow="ellipsis")
        for name, colour in zip(self._series, COLOURS, strict=False):
            head.append(f"  {name}", style=f"not bold {colour}")
        yield head
        for number, line in enumerate(self._draw(width)):
            value = {0: self._y[1], _ROWS - 1: self._y[0]}.get(number)
            yield Text(f"{'' if value is None else f'{value:.3g}':>{_MARGIN}} ", style="dim") + line
        left, right = self._ends
        yield Text(f"{'':{_MARGIN}} {left}{right:>{max(0, width - len(left))}}", style="dim", no_wrap=True)

    def _draw(self, width: int) -> list[Text]:
        cells: dict[tuple[int, int], tuple[int, str]] = {}
        for points, colour in zip(self._series.values(), COLOURS, strict=False):
            places = [
                (_place(x, self._x, 2 * width), 4 * _ROWS - 1 - _place(y, self._y, 4 * _ROWS))
                for x, y in points
            ]
            for column, row in _line(places) if self._joined else places:
                spot = row // 4, column // 2
                cells[spot] = cells.get(spot, (0, ""))[0] | _BITS[row % 4][column % 2], colour
        lines = []
        for row in range(_ROWS):
            found = (cells.get((row, column), (0, "")) for column in range(width))
            lines.append(
                Text.assemble(*((chr(0x2800 + bits) if bits else " ", style) for bits, style in found))
            )
        return lines


def side_by_side(console: Console, charts: Sequence[Chart], others: int) -> list[RenderableType]:
    """As many charts as there is room for, under so many other lines; none without such characters."""
    fits = not console.options.ascii_only and console.height >= _ROWS + 2 + others
    shown = charts[: console.width // (_NARROWEST + 2)] if fits else []
    if not shown:
        return []
    grid = Table.grid(expand=True)
    for _ in shown:
        grid.add_column(ratio=1)
    grid.add_row(*shown)
    return [grid]


def _line(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The places, and those on straight lines between them."""
    found = places[:1]
    for (x, y), (to_x, to_y) in pairwise(places):
        length = max(abs(to_x - x), abs(to_y - y), 1)
        found += [
            (x + round((to_x - x) * part / length), y + round((to_y - y) * part / length))
            for part in range(1, length + 1)
        ]
    return found


def _span(values: Iterable[float]) -> tuple[float, float]:
    known = [value for value in values if value == value and abs(value) != float("inf")]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _place(value: float, span: tuple[float, float], size: int) -> int:
    """The number of the point, from 0 on; what is not a number, or beyond, is at an edge."""
    share = (value - span[0]) / (span[1] - span[0])
    return min(size - 1, max(0, round(share * (size - 1)))) if abs(share) < 2 else (size - 1) * (share > 0)
