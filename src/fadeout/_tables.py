"""Tables, as text and as HTML."""

from collections.abc import Sequence
from html import escape


def printable(text: str) -> str:
    r"""Text from a file, for a terminal: what would move the cursor or colour the screen is escaped.

    >>> print(printable("weight\x1b[31m"))
    weight\x1b[31m
    """
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def table(lines: list[list[str]], words: int) -> list[str]:
    """Lines of text, in columns: the first is the head, the last the total; so many columns are words.

    >>> print(*table([["layer", "bytes"], ["a", "12"], ["total", "12"]], words=1), sep="\\n")
    layer  bytes
    ------------
    a         12
    ------------
    total     12
    """
    lines = [list(map(printable, cells)) for cells in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = "<" * words + ">" * (len(widths) - words)
    line = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    text = [line.format(*cells) for cells in lines]
    rule = "-" * len(text[0])
    return [text[0], rule, *text[1:-1], rule, text[-1]]


def percent(share: float) -> str:
    """A share in percent.

    >>> percent(0.9), percent(0.0172)
    ('90 %', '1.72 %')
    """
    return f"{100 * share:.3g} %"


def html_table(lines: Sequence[Sequence[str]], caption: str = "") -> str:
    """The same as HTML, for a notebook; without a line for the total.

    >>> html_table([["layer", "bytes"], ["<a>", "12"]])
    '<table><tr><th>layer</th><th>bytes</th></tr><tr><td>&lt;a&gt;</td><td>12</td></tr></table>'
    """
    head, *rest = lines
    rows = [_row("th", head), *(_row("td", cells) for cells in rest)]
    above = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{above}{''.join(rows)}</table>"


def _row(kind: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{kind}>{escape(cell)}</{kind}>' for cell in cells)}</tr>"
