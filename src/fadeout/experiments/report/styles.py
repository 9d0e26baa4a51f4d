"""How methods are named, coloured and marked, and the style of all figures."""

from dataclasses import dataclass
from pathlib import Path

from fadeout.methods import registry


@dataclass(frozen=True)
class Look:
    """How a method is shown: told apart by colour and by mark, so that neither alone must do."""

    label: str
    light: str
    """The colour on white; chosen, within its hue, to differ from the others for colour-blind eyes too."""
    dark: str
    """The colour on a dark page."""
    marker: str

    @property
    def rim(self) -> str:
        """The colour around its filled marks: the page's; a thin one would vanish in it, and has its own."""
        return self.light if self.marker.startswith(("$", "*")) else COLOURS["paper"]


OTHER = Look("other", "#747c8a", "#8f98a8", "h")
"""For a method that only the paper has."""

METHODS = {
    name: Look(m.label, m.colour, m.dark_colour or m.colour, m.marker) for name, m in registry.METHODS.items()
}
METHODS |= {
    "plain_decay": Look("plain decay", "#754b35", "#ac6866", "<"),
    "soft": Look("soft", "#254b76", "#a299d3", "p"),
}
"""In the order in which they are listed; the last two are settings that the paper's ablation names."""

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
