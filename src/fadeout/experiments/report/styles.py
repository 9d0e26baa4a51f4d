"""Colours and marks of the methods: told apart by both, so that neither colour nor shape alone must do."""

from fadeout import drawing

LIGHT = {
    "auto": "#0b6bcb",
    "swd": "#00896b",
    "gmp": "#c4458a",
    "han": "#d9730d",
    "liu": "#8a7400",
    "rewinding": "#3aa7dc",
    "one_shot": "#9353b4",
    "plain_decay": "#8c5a3b",
    "growing_decay": "#b3261e",
    "soft_pruning": "#4d5b8c",
    "dense": "#5b6472",
    "other": "#747c8a",
}
"""For each method, on white."""

DARK = {
    "auto": "#5aa9f7",
    "swd": "#35c9a3",
    "gmp": "#f08bc0",
    "han": "#f0a04b",
    "liu": "#cdb83f",
    "rewinding": "#8fd3f7",
    "one_shot": "#c58be0",
    "plain_decay": "#c79a7c",
    "growing_decay": "#ff8a7d",
    "soft_pruning": "#9aa8dd",
    "dense": "#a9b2c0",
    "other": "#8f98a8",
}
"""The same on a dark page."""

COLOURS = {**drawing.COLOURS, **LIGHT}

MARKERS = {
    "auto": "o",
    "swd": "D",
    "gmp": "s",
    "han": "^",
    "liu": "v",
    "rewinding": "P",
    "one_shot": "X",
    "plain_decay": "<",
    "growing_decay": ">",
    "soft_pruning": "p",
    "dense": "d",
    "other": "h",
}


def role(method: str) -> str:
    """The name of a method's colour.

    >>> role("swd"), role("soft"), role("a rival")
    ('swd', 'soft_pruning', 'other')
    """
    name = "soft_pruning" if method == "soft" else method  # "soft" is the colour of soft text
    return name if name in LIGHT else "other"


def rules() -> str:
    """The colours as style rules, light and dark."""
    light, dark = (
        ":root { " + " ".join(f"--{name}: {colour};" for name, colour in colours.items()) + " }"
        for colours in (LIGHT, DARK)
    )
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n  {dark}\n}}"
