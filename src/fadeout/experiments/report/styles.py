"""How methods are named, coloured and marked, and the style of all figures."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Look:
    """How a method is shown: told apart by colour and by mark, so that neither alone must do."""

    label: str
    light: str
    """The colour on white; chosen, within its hue, to differ from the others for colour-blind eyes too."""
    dark: str
    """The colour on a dark page."""
    marker: str


METHODS = {
    "dense": Look("dense", "#404b50", "#d3dcdf", "d"),
    "one_shot": Look("one-shot", "#5e3291", "#a556fa", "X"),
    "han": Look("Han et al.", "#dd7603", "#e53c15", "^"),
    "liu": Look("Liu et al.", "#536107", "#ddcd65", "v"),
    "rewinding": Look("LR rewinding", "#3aa7dc", "#5fdcff", "P"),
    "gmp": Look("GMP", "#bc57aa", "#af5da6", "s"),
    "swd": Look("SWD", "#04955e", "#5eca92", "D"),
    "auto": Look("fadeout", "#0b6bcb", "#5aa9f7", "o"),
    "plain_decay": Look("plain decay", "#754b35", "#ac6866", "<"),
    "growing_decay": Look("growing decay", "#cd0019", "#fa857a", ">"),
    "soft": Look("soft", "#254b76", "#a299d3", "p"),
}
"""In the order in which they are listed."""

OTHER = Look("other", "#747c8a", "#8f98a8", "h")
"""For a method that only the paper has."""

COLOURS = {
    "ink": "#1d2433",
    "soft": "#667085",
    "rule": "#e4e7ec",
    "paper": "#ffffff",
    **{f"method-{name}": look.light for name, look in (METHODS | {"other": OTHER}).items()},
}
"""What figures are drawn in. No two roles share a colour: a page exchanges each for a dark one."""

STYLE = str(Path(__file__).with_name("fadeout.mplstyle"))
"""For ``matplotlib.style.context(["default", STYLE])``, whatever the user's own style is."""
