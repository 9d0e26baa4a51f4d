"""What all figures share: their style, an axis that stretches high accuracies, and SVG inside a page."""

import io
import re
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # what is not drawn here does not need it: a page's style, names of powers
    from matplotlib.figure import Figure

COLOURS = {"ink": "#1d2433", "soft": "#667085", "rule": "#e4e7ec", "paper": "#ffffff"}
"""Each role has a colour of its own, so that a page can exchange it for a dark one."""

STYLE = {
    "font.size": 9.5,
    "text.color": COLOURS["ink"],
    "axes.edgecolor": COLOURS["rule"],
    "axes.labelcolor": COLOURS["soft"],
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlepad": 14,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": COLOURS["rule"],
    "ytick.color": COLOURS["rule"],
    "xtick.labelcolor": COLOURS["soft"],
    "ytick.labelcolor": COLOURS["soft"],
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "fadeout",
}
"""For ``matplotlib.style.context(["default", STYLE])``, whatever the user's own style is."""


def inline(figure: "Figure", colours: Mapping[str, str], links: Mapping[str, str] | None = None) -> str:
    """A figure as an SVG to put into a page: without prolog, size and names of groups.

    Args:
        figure: drawn in the colours of roles.
        colours: of the roles; the page says what ``var(--role)`` is.
        links: what to say of each link of the figure, which must be ``#anchor`` in the same page.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', r"<svg \1>", svg, count=1)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    for role, colour in colours.items():
        svg = svg.replace(colour, f"var(--{role})")
    for link, text in (links or {}).items():
        said = escape(text)
        svg = svg.replace(
            f'<a xlink:href="{escape(link)}" target="_blank">',
            f'<a href="{escape(link)}" aria-label="{said}"><title>{said}</title>',
        )
    return svg


def style_sheet() -> str:
    """The style that all pages share."""
    return files("fadeout.experiments.report").joinpath("page.css").read_text(encoding="utf-8")


def stretched(accuracy):
    """A logarithm of the errors: from 98 to 99 % is as far as from 50 to 75 %.

    >>> [round(float(x), 3) for x in stretched([0, 91, 99])]
    [-2.004, -1.0, -0.301]
    """
    return -np.log10(np.maximum(101 - np.asarray(accuracy, float), 1e-3))  # margins may go beyond


def compressed(value):
    """The accuracy that :func:`stretched` puts there.

    >>> float(compressed(stretched(91)))
    91.0
    """
    return 101 - 10 ** -np.asarray(value, float)


def power(exponent: int) -> str:
    """A power of ten.

    >>> power(-6), power(0)
    ('10⁻⁶', '1')
    """
    digits = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return "1" if exponent == 0 else f"10{digits}"
